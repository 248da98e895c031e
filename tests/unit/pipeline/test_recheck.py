"""Samples generated again without drafts, and what is made of differences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import RowError
from configs.job import DraftPolicy, Sampling
from pipeline.recheck import Recheck, is_chosen, recheck, sum_of
from workers.contract import Event, Finished, Request, SpeculationStats


def request(name: str, **changes: object) -> Request:
    made = Request(f"{name}#0", name, 0, "code", (1, 2), Sampling(), 7, DraftPolicy(policy="fixed", drafter="ngram"))
    return replace(made, **changes)  # type: ignore[arg-type]


def finished(tokens: tuple[int, ...], drafts: int = 3) -> Finished:
    stats = SpeculationStats()
    stats.record(drafts, min(drafts, 1))
    return Finished("", tokens, "stop", 0, 0.0, 0.0, 0.0, 10, stats, "ngram")


class Replayer:
    """Answers reruns as told: request id -> tokens, or an error."""

    def __init__(self, answers: dict[str, tuple[int, ...] | RowError]) -> None:
        self.answers = answers
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        self.asked.append(request)
        answer = self.answers[request.request_id]
        if isinstance(answer, RowError):
            raise answer
        yield finished(answer, drafts=0)


def rechecked(done: list[tuple[Request, Finished]], answers: dict[str, tuple[int, ...] | RowError]) -> Recheck:
    return asyncio.run(recheck(Replayer(answers), done, 1.0))  # type: ignore[arg-type]


def test_differences_are_counted_beside_those_of_two_plain_runs() -> None:
    done = [(request(name), finished((5, 6, 7))) for name in ("same", "drifts", "noisy", "longer")]
    answers: dict[str, tuple[int, ...] | RowError] = {
        "same#0 plain": (5, 6, 7),
        "same#0 plain-again": (5, 6, 7),
        "drifts#0 plain": (5, 9, 7),
        "drifts#0 plain-again": (5, 9, 7),
        "noisy#0 plain": (5, 6, 7),
        "noisy#0 plain-again": (5, 6, 8),
        "longer#0 plain": (5, 6, 7, 8),
        "longer#0 plain-again": (5, 6, 7, 8),
    }
    found = rechecked(done, answers)
    assert (found.samples, found.same, found.plain_same) == (4, 2, 3)
    assert sorted(found.first_differences) == [1, 3]
    assert found.plain_first_differences == (2,)
    assert found.engine_ns == 80
    assert "2 of 4 samples are the same without drafts (the others from token 1 on at the earliest)" in str(found)


def test_a_rerun_that_fails_counts_for_nothing_else() -> None:
    found = rechecked(
        [(request("row"), finished((5,)))],
        {"row#0 plain": RowError("timeout", "late", stage="engine"), "row#0 plain-again": (5,)},
    )
    assert (found.samples, found.failed) == (0, 1)


def test_only_drafted_samples_that_promise_a_text_are_looked_at() -> None:
    done = [
        (request("undrafted"), finished((5,), drafts=0)),
        (request("lawful", acceptance="rejection"), finished((5,))),
        (request("lossy", acceptance="threshold"), finished((5,))),
    ]
    assert rechecked(done, {}) == Recheck()


def test_reruns_draft_nothing_and_keep_the_noise() -> None:
    engine = Replayer({"row#0 plain": (5,), "row#0 plain-again": (5,)})
    asyncio.run(recheck(engine, [(request("row"), finished((5,)))], 1.0))  # type: ignore[arg-type]
    assert all(each.draft.bounds == (0, 0) for each in engine.asked)
    assert {(each.row_id, each.sample_index, each.seed) for each in engine.asked} == {("row", 0, 7)}


def test_the_chosen_share_is_the_same_each_time() -> None:
    names = [request(str(i)) for i in range(4000)]
    chosen = [each for each in names if is_chosen(each, 0.1)]
    assert len(chosen) == pytest.approx(400, rel=0.2)
    assert chosen == [each for each in names if is_chosen(each, 0.1)]
    assert all(is_chosen(each, 0.2) for each in chosen)


COUNTS = st.builds(
    Recheck,
    *(st.integers(0, 9) for _ in range(3)),
    *(st.lists(st.integers(0, 99), max_size=3).map(tuple) for _ in range(2)),
    st.integers(0, 9),
    st.integers(0, 10**9),
)


@given(st.lists(COUNTS, max_size=4))
def test_shards_add_up(found: list[Recheck]) -> None:
    total = sum_of(None, *(each.to_json() for each in found))
    assert total == (sum(found, Recheck()).to_json() if found else None)
