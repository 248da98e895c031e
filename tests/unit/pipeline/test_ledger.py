"""Every nanosecond of an engine's life is in exactly one part."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger import Ledger
from workers.contract import Round


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def round_of(busy_ns: int) -> Round:
    return Round(busy_ns, 1, 0, 3, 2, 1, 2, num_decoding=1)


def serving_ledger() -> tuple[Ledger, Clock]:
    clock = Clock()
    ledger = Ledger({"incarnation": "a1-x"}, clock)
    clock.now += 5
    ledger.enter("warm_up")
    clock.now += 3
    ledger.enter("waiting_input")
    return ledger, clock


steps = st.lists(
    st.tuples(st.sampled_from(["start", "generated", "committed", "round", "look"]), st.integers(0, 1000)), max_size=40
)


@given(steps)
def test_parts_add_up_to_the_lifetime_and_none_is_negative(steps: list[tuple[str, int]]) -> None:
    ledger, clock = serving_ledger()
    generating = committing = 0
    for step, elapsed in steps:
        clock.now += elapsed
        if step == "start":
            ledger.shard_started()
            generating += 1
        elif step == "generated" and generating:
            ledger.shard_generated()
            generating, committing = generating - 1, committing + 1
        elif step == "committed" and committing:
            ledger.shard_committed(7)
            committing -= 1
        elif step == "round" and generating:
            ledger.rounds([round_of(elapsed)])
        seconds = ledger.seconds()
        assert seconds.lifetime == clock.now
        assert all(value >= 0 for value in asdict(seconds).values())


def test_each_part_gets_its_time() -> None:
    ledger, clock = serving_ledger()
    clock.now += 10  # waits for its first shard
    ledger.shard_started()
    clock.now += 100
    ledger.rounds([round_of(60), round_of(30)])
    ledger.shard_generated()
    clock.now += 20  # only a commit is going on
    ledger.shard_committed(90)
    clock.now += 40  # nothing left
    ledger.enter("teardown")
    clock.now += 2
    seconds = ledger.seconds()
    assert asdict(seconds) == {
        "load": 5,
        "warm_up": 3,
        "busy": 90,
        "host": 10,
        "waiting_input": 10,
        "waiting_storage": 20,
        "tail": 40,
        "teardown": 2,
    }


def test_waiting_between_shards_is_no_tail() -> None:
    ledger, clock = serving_ledger()
    for _ in range(2):
        ledger.shard_started()
        clock.now += 10
        ledger.shard_generated()
        ledger.shard_committed(10)
        clock.now += 25
    assert (ledger.seconds().waiting_input, ledger.seconds().tail) == (25, 25)


def test_a_commit_beside_generation_is_no_waiting() -> None:
    ledger, clock = serving_ledger()
    ledger.shard_started()
    ledger.shard_started()
    ledger.shard_generated()
    clock.now += 50
    assert ledger.seconds().waiting_storage == 0
    assert ledger.seconds().host == 50


def test_rounds_are_counted_once() -> None:
    ledger, _ = serving_ledger()
    ledger.rounds([round_of(1), round_of(1)])
    work = ledger.snapshot()["work"]
    assert (work["rounds"], work["draft_tokens"], work["sequence_rounds"], work["output_tokens"]) == (2, 4, 2, 4)
