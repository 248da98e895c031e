"""The engine's own promises: events, times, errors, memory. That its tokens are right is in test_speculation and
test_greedy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import VOCAB, check_identity, make_core, make_request, random_prompt, run

from configs.errors import RowError
from configs.job import Draft as DraftSection
from workers.acceptance import ROOT, Tree
from workers.contract import Event, Finished, Progress, Started
from workers.drafter import Ask, Draft
from workers.ngram import NgramDrafter
from workers.torch_engine import TorchEngine


@pytest.fixture
def core(tiny_folder: Path) -> TorchEngine:
    return make_core(tiny_folder, draft=DraftSection(ngram_min=1, ngram_max=3), max_num_seqs=4, max_batched_tokens=64)


def events_of(core: TorchEngine, *, steps: int = 10_000) -> dict[str, list[Event | RowError]]:
    events: dict[str, list[Event | RowError]] = {}
    while core.has_work and (steps := steps - 1) >= 0:
        for request_id, event in core.step():
            events.setdefault(request_id, []).append(event)
    return events


def test_events_come_in_order_and_add_up(core: TorchEngine) -> None:
    rng = random.Random(1)
    for i in range(9):
        core.add(make_request(f"row{i}", random_prompt(rng, 3, 50), k=3, temperature=0.5))
    for events in events_of(core).values():
        started, *progress, finished = events
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        assert all(isinstance(event, Progress) for event in progress)
        assert sum(event.num_tokens for event in progress if isinstance(event, Progress)) == len(finished.token_ids)
        assert 0 <= started.queue_s <= started.ttft_s <= finished.total_s
        assert (started.queue_s, started.ttft_s) == (finished.queue_s, finished.ttft_s)


def test_busy_time_is_split_to_the_nanosecond(core: TorchEngine) -> None:
    rng = random.Random(2)
    requests = [make_request(f"row{i}", random_prompt(rng, 3, 60), k=i % 5) for i in range(10)]
    ends = run(core, requests)
    rounds = core.drain_rounds()
    assert sum(end.engine_ns for end in ends.values()) == sum(entry.busy_ns for entry in rounds)
    assert sum(entry.num_output_tokens for entry in rounds) == sum(len(end.token_ids) for end in ends.values())
    stats = [end.speculation for end in ends.values()]
    assert sum(entry.num_draft_tokens for entry in rounds) == sum(s.num_draft_tokens for s in stats)
    assert sum(entry.num_accepted_tokens for entry in rounds) == sum(s.num_accepted_draft_tokens for s in stats)
    assert sum(entry.num_verify_tokens for entry in rounds) == sum(s.num_rounds + s.num_draft_tokens for s in stats)
    assert all(0 <= entry.draft_ns <= entry.busy_ns for entry in rounds)
    assert core.drain_rounds() == []


def test_rows_that_cannot_be_served_are_refused_alone(core: TorchEngine) -> None:
    refused = {
        "empty_prompt": make_request("empty", []),
        "token_out_of_range": make_request("foreign", [len(VOCAB)]),
        "context_length_exceeded": make_request("long", [1] * 500, max_tokens=100),
    }
    for code, request in refused.items():
        with pytest.raises(RowError) as caught:
            core.add(request)
        assert (caught.value.code, caught.value.stage) == (code, "engine")
        assert request.row_id in caught.value.message
    core.add(make_request("fine", [1, 2, 3]))
    with pytest.raises(RowError, match="fine#0"):
        core.add(make_request("fine", [1, 2, 3]))
    assert isinstance(events_of(core)["fine#0"][-1], Finished)


def test_a_cache_smaller_than_the_model_bounds_requests(tiny_folder: Path) -> None:
    core = make_core(tiny_folder, kv_cache_tokens=100, max_num_seqs=4)
    core.add(make_request("fits", [1] * 60, max_tokens=40))
    with pytest.raises(RowError, match="allow 100 together"):
        core.add(make_request("long", [1] * 61, max_tokens=40))
    assert isinstance(events_of(core)["fits#0"][-1], Finished)


def test_an_abort_ends_a_request_wherever_it_is(core: TorchEngine) -> None:
    for i in range(6):
        core.add(make_request(f"row{i}", [1, 2, 3, i + 1], ignore_eos=True, max_tokens=30))
    core.step()
    for name in ("row0#0", "row5#0"):
        ((request_id, error),) = core.abort(name)
        assert isinstance(error, RowError)
        assert (request_id, error.code) == (name, "aborted")
        assert (error.engine_ns > 0) == (name == "row0#0")
    assert core.abort("row0#0") == []
    events = events_of(core)
    assert sorted(name for name, ends in events.items() if isinstance(ends[-1], Finished)) == [
        f"row{i}#0" for i in range(1, 5)
    ]


def test_a_deadline_runs_from_the_first_prefill(tiny_folder: Path) -> None:
    """Time moves by hand: a second per look at the clock."""
    core = make_core(tiny_folder, max_num_seqs=1)
    now = iter(range(0, 10**15, 10**9))
    core._clock_ns = lambda: next(now)
    core.add(make_request("patient", [1, 2, 3], ignore_eos=True, max_tokens=40, deadline_s=10_000))
    core.add(make_request("hasty", [1, 2, 3], ignore_eos=True, max_tokens=40, deadline_s=30))
    events = events_of(core)
    assert isinstance(events["patient#0"][-1], Finished)
    error = events["hasty#0"][-1]
    assert isinstance(error, RowError)
    assert (error.code, error.retryable) == ("timeout", False)
    assert error.engine_ns > 0
    assert any(isinstance(event, Progress) for event in events["hasty#0"])


def test_what_is_not_a_number_ends_its_row_only(core: TorchEngine) -> None:
    plain = run(core, [make_request(f"row{i}", [1, 2, 3, i + 1], max_tokens=12) for i in range(3)])
    poison = core._model.embedding[70].clone()
    core._model.embedding[70] = torch.nan
    for i in range(3):
        core.add(make_request(f"row{i}", [1, 2, 3, i + 1], max_tokens=12))
    core.add(make_request("sick", [70, 70, 70]))
    events = events_of(core)
    core._model.embedding[70] = poison
    error = events.pop("sick#0")[-1]
    assert isinstance(error, RowError)
    assert error.code == "non_finite_logits"
    assert {n: e[-1].token_ids for n, e in events.items() if isinstance(e[-1], Finished)} == {
        n: end.token_ids for n, end in plain.items()
    }
    again = run(core, [make_request(f"row{i}", [1, 2, 3, i + 1], max_tokens=12) for i in range(4)])
    assert all(again[name].token_ids == end.token_ids for name, end in plain.items())


def test_the_cache_grows_and_shrinks_without_changing_a_token(tiny_folder: Path) -> None:
    rng = random.Random(3)
    requests = [
        make_request(f"row{i}", random_prompt(rng, 3, high), k=2) for i, high in enumerate([20, 300, 20, 200] * 3)
    ]
    roomy = make_core(tiny_folder, longest=400, max_num_seqs=12, max_batched_tokens=400)
    tight = make_core(tiny_folder, kv_cache_tokens=512, max_num_seqs=6, max_batched_tokens=64)
    expected = {name: end.token_ids for name, end in run(roomy, requests).items()}
    assert {name: end.token_ids for name, end in run(tight, requests).items()} == expected


def test_samples_of_a_row_share_its_prefill(core: TorchEngine) -> None:
    prompt = random_prompt(random.Random(4), 50, 50)
    core.drain_rounds()
    run(core, [make_request("row", prompt, sample=i, temperature=1.0) for i in range(4)])
    assert sum(entry.num_prefill_tokens for entry in core.drain_rounds()) == len(prompt) + 3


def test_off_drafts_nothing_and_says_so(core: TorchEngine) -> None:
    end = run(core, [make_request("row", [1, 2, 1, 2, 1, 2], k=0)])["row#0"]
    assert end.drafter == "none"
    assert end.speculation.num_draft_tokens == 0
    assert end.speculation.draft_len_histogram[0] == end.speculation.num_rounds == len(end.token_ids) - 1
    assert run(core, [make_request("row", [1, 2, 1, 2, 1, 2], k=4)])["row#0"].drafter == "ngram"


def test_the_token_that_ends_a_sample_is_kept_but_leaves_no_text(core: TorchEngine) -> None:
    whole = run(core, [make_request("row", [1, 2, 3], ignore_eos=True)])["row#0"]
    last = whole.token_ids.index(whole.token_ids[6])
    end = run(core, [make_request("row", [1, 2, 3], ignore_eos=True, stop_token_ids=[whole.token_ids[6]])])["row#0"]
    assert end.token_ids == whole.token_ids[: last + 1]
    assert end.finish_reason == "stop"
    assert whole.text.startswith(end.text)
    without = run(core, [make_request("row", [1, 2, 3], ignore_eos=True, max_tokens=max(1, last))])["row#0"]
    assert end.text == (without.text if last else "")


class ErraticDrafter(NgramDrafter):
    """Proposes trees with the true continuation up to a random place, among noise."""

    draws_trees = True

    def __init__(self, rng: random.Random, truth: dict[str, Sequence[int]]) -> None:
        super().__init__(shortest=1, longest=1)
        self._rng, self._truth = rng, truth

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft:
        done = len(ask.sequence.tokens)
        right = iter(self._truth[ask.sequence.id][done : done + self._rng.randint(0, ask.max_draft)])
        tokens, parents, depths, end = list[int](), list[int](), {ROOT: 0}, ROOT
        for node in range(self._rng.randint(0, ask.max_nodes)):
            parent = end if self._rng.random() < 0.7 else self._rng.randint(ROOT, node - 1)
            if depths[parent] == ask.max_draft:
                parent = ROOT
            token = next(right, None) if parent == end else None
            end = node if token is not None else end
            tokens.append(self._rng.randrange(len(VOCAB)) if token is None else token)
            parents.append(parent)
            depths[node] = depths[parent] + 1
        return Draft(Tree(tuple(tokens), tuple(parents)))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_cache_after_rollback_is_that_of_a_fresh_prefill(tiny_folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    core = make_core(tiny_folder, max_num_seqs=4, max_batched_tokens=64, longest=80)
    requests = [
        make_request(
            f"row{i}",
            random_prompt(rng),
            k=rng.randint(1, 8),
            ignore_eos=True,
            max_tokens=40,
            policy={"tree": {"max_nodes": rng.randint(1, 30)}},
        )
        for i in range(4)
    ]
    plain = run(core, [make_request(r.row_id, r.prompt_token_ids, ignore_eos=True, max_tokens=40) for r in requests])
    truth = {r.request_id: [*r.prompt_token_ids, *plain[r.request_id].token_ids] for r in requests}
    core._drafters["ngram"] = ErraticDrafter(rng, truth)
    for request in requests:
        core.add(request)
    for _ in range(rng.randint(2, 12)):
        core.step()
    running = [(list(sequence.tokens), sequence.num_computed, sequence.slot) for sequence in core._scheduler.running]
    held = [[torch.cat(core._slots.cache.layer(i), 1)[slot, :, :n].clone() for i in range(2)] for _, n, slot in running]
    assert running
    for (tokens, computed, _), layers in zip(running, held, strict=True):
        fresh = make_core(tiny_folder, max_num_seqs=1, longest=80)
        fresh.add(make_request("fresh", tokens[: computed + 1], max_tokens=1))
        slot = fresh._scheduler.waiting[0]
        fresh.step()
        for i, layer in enumerate(layers):
            again = torch.cat(fresh._slots.cache.layer(i), 1)[slot.slot, :, :computed]
            torch.testing.assert_close(layer, again, rtol=1e-9, atol=1e-9)
    for request_id, events in events_of(core).items():
        end = events[-1]
        assert isinstance(end, Finished)
        check_identity(end)
        assert end.token_ids == plain[request_id].token_ids
