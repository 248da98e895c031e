"""A trace under other lengths: known answers are looked up, unknown ones drawn."""

from __future__ import annotations

import random
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.cost import SEGMENTS, LinearCost
from workers.draft_length.replay import AutoLengths, FixedLengths, History, Replay, TracedRound
from workers.draft_length.stratum import Stratum

CODE, CHAT = Stratum("code", "greedy", "eagle3"), Stratum("chat", "hot", "eagle3")
COST = LinearCost(7e-3, 0.0, (2e-5,) * len(SEGMENTS), 4e-8, 0.0, {"eagle3": 7e-4}, {"eagle3": 0.0})


def traced(stratum: Stratum, hazard: float, k: int, rounds: int, seed: int) -> History:
    draws, history = random.Random(seed), History(stratum, 100)
    for _ in range(rounds):
        accepted = 0
        while accepted < k and draws.random() < hazard:
            accepted += 1
        history.rounds.append(TracedRound(k, k, accepted))
    return history


def trace(k: int, requests: int = 60) -> list[History]:
    return [traced(*((CODE, 0.9) if i % 2 else (CHAT, 0.3)), k=k, rounds=60, seed=i) for i in range(requests)]


def test_under_its_own_lengths_a_trace_is_itself() -> None:
    histories = trace(3)
    served = Replay(histories, COST, batch=8).run(FixedLengths({}, 3))
    for task in ("code", "chat"):
        mine = [each for each in histories if each.stratum.task == task]
        assert served[task].tokens == sum(each.num_tokens for each in mine)
        assert served[task].accepted == sum(r.accepted for each in mine for r in each.rounds)
        assert served[task].rounds == sum(len(each.rounds) for each in mine)


@pytest.mark.parametrize("k", [0, 1, 3, 5, 8])
def test_other_lengths_keep_the_hazards(k: int) -> None:
    """From a trace at K = 8 all is known; from one at K = 2 what lies deeper is drawn."""
    for traced_k in (8, 2):
        served = Replay(trace(traced_k, 120), COST, batch=8, seed=1).run(FixedLengths({}, k))
        for task, hazard in (("code", 0.9), ("chat", 0.3)):
            expected = 1 + sum(list(accumulate([hazard] * 8, mul))[:k])
            assert served[task].tokens / served[task].rounds == pytest.approx(expected, rel=0.08)


def test_what_had_no_drafter_gets_none() -> None:
    plain = Stratum("plain", "greedy", "none")
    histories = [*trace(3, 8), History(plain, 100, [TracedRound(0, 0, 0)] * 50)]
    for choice in (FixedLengths({}, 4), AutoLengths(["eagle3"], seed=0)):
        served = Replay(histories, COST, batch=9).run(choice)
        assert served["plain"].drafts == 0
        assert served["plain"].tokens == 50
        assert served["code"].drafts > 0


def test_plain_rounds_make_a_token_each() -> None:
    served = Replay(trace(8), COST, batch=4).run(FixedLengths({}, 0))
    assert all(each.tokens == each.rounds and each.drafts == 0 for each in served.values())


def test_a_drafter_that_found_nothing_finds_nothing_again() -> None:
    history = History(CODE, 10, [TracedRound(4, 0, 0)] * 50)
    (served,) = Replay([history], COST, batch=1).run(FixedLengths({}, 8)).values()
    assert (served.drafts, served.tokens) == (0, 50)


def test_auto_comes_close_to_the_best_lengths_of_each_task() -> None:
    replay = Replay(trace(8, 200), COST, batch=8)
    best = {
        task: max(replay.run(FixedLengths({}, k))[task].goodput for k in range(MAX_DRAFT_LEN + 1))
        for task in ("code", "chat")
    }
    auto = replay.run(AutoLengths(["eagle3"], seed=0))
    assert auto["code"].goodput >= 0.93 * best["code"]


@given(st.integers(1, 40), st.integers(0, 8), st.integers(0, 5))
def test_every_request_comes_to_its_end_once(batch: int, k: int, seed: int) -> None:
    histories = [traced(CODE, 0.6, 4, rounds=5, seed=i) for i in range(15)]
    (served,) = Replay(histories, COST, batch=batch, seed=seed).run(FixedLengths({}, k)).values()
    assert served.tokens == sum(each.num_tokens for each in histories)


def test_the_same_seed_gives_the_same_result() -> None:
    one, other = (Replay(trace(2), COST, batch=8, seed=4).run(AutoLengths(["eagle3"], 4)) for _ in range(2))
    assert one == other
    assert Replay(trace(2), COST, batch=8, seed=5).run(FixedLengths({}, 6)) != Replay(
        trace(2), COST, batch=8, seed=4
    ).run(FixedLengths({}, 6))
