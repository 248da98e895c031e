"""Budgets hold, nobody starves, order of arrival decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import make_request

from workers.draft_length.stratum import Stratum
from workers.scheduler import Limits, Schedule, Scheduler
from workers.sequence import Sequence


@dataclass
class Room:
    """Seats for a number of sequences, some of which are told to wait."""

    seats: int
    awaiting: set[str] = field(default_factory=set)

    def seat(self, sequence: Sequence) -> bool:
        self.seats -= 1
        return self.seats >= 0

    def awaits_prefix(self, sequence: Sequence) -> bool:
        return sequence.id in self.awaiting


def waiting_sequence(name: str, prompt: int, *, k: int = 0, max_tokens: int = 10) -> Sequence:
    return Sequence(
        request=make_request(name, [1] * prompt, k=k, max_tokens=max_tokens),
        key=(0, 0),
        drafter="ngram",
        stratum=Stratum("default", "greedy", "ngram"),
        min_draft=k,
        max_draft=k,
        next_draft=k,
        max_nodes=k,
        spare=0,
        follower=None,
        end_ids=frozenset(),
        stop_finder=None,
        arrived_ns=0,
        tokens=[1] * prompt,
    )


def advance(schedule: Schedule, scheduler: Scheduler, room: Room) -> None:
    """What the engine does after a forward pass, every draft rejected."""
    for prefill in schedule.prefills:
        if prefill.is_last:
            prefill.sequence.extend([2])
        prefill.sequence.num_computed += prefill.num_tokens
    for decode in schedule.decodes:
        decode.sequence.num_computed += 1
        decode.sequence.extend([2])
    for sequence in [s for s in scheduler.running if s.finish_reason]:
        scheduler.remove(sequence)
        room.seats += 1


SHAPES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8), st.integers(1, 12)), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 6), st.integers(1, 40), st.integers(1, 40))
def test_everybody_finishes_within_the_budgets(
    shapes: list[tuple[int, int, int]], max_num_seqs: int, max_batched: int, chunk: int
) -> None:
    limits = Limits(max_num_seqs, max_batched, chunk)
    room = Room(seats=100)
    scheduler = Scheduler(limits, room)
    for i, (prompt, k, max_tokens) in enumerate(shapes):
        scheduler.waiting.append(waiting_sequence(f"row{i}", prompt, k=k, max_tokens=max_tokens))
    for _ in range(2000):
        schedule = scheduler.schedule()
        drafts = [decode.max_draft for decode in schedule.decodes]
        prefilled = sum(prefill.num_tokens for prefill in schedule.prefills)
        assert sum(drafts) + len(drafts) + prefilled <= max_batched
        assert prefilled <= chunk
        assert len(scheduler.running) <= max_num_seqs
        for decode in schedule.decodes:
            assert 0 <= decode.max_draft < decode.sequence.num_left
        if schedule.is_empty:
            break
        advance(schedule, scheduler, room)
    assert not scheduler.running
    assert not scheduler.waiting


def test_decoding_and_prefill_share_a_pass() -> None:
    room = Room(seats=100)
    scheduler = Scheduler(Limits(4, 20, 8), room)
    scheduler.waiting.append(waiting_sequence("short", 3))
    advance(scheduler.schedule(), scheduler, room)
    scheduler.waiting.append(waiting_sequence("long", 30))
    schedule = scheduler.schedule()
    assert [decode.sequence.id for decode in schedule.decodes] == ["short#0"]
    assert [(prefill.sequence.id, prefill.num_tokens) for prefill in schedule.prefills] == [("long#0", 8)]


def test_a_request_without_room_is_not_overtaken() -> None:
    scheduler = Scheduler(Limits(4, 100, 100), Room(seats=0))
    scheduler.waiting.extend([waiting_sequence("big", 30), waiting_sequence("small", 3)])
    assert scheduler.schedule().is_empty
    assert len(scheduler.waiting) == 2


def test_one_that_waits_for_a_prefix_is_overtaken() -> None:
    scheduler = Scheduler(Limits(4, 100, 100), Room(seats=2, awaiting={"twin#0"}))
    scheduler.waiting.extend([waiting_sequence("twin", 30), waiting_sequence("other", 3)])
    assert [prefill.sequence.id for prefill in scheduler.schedule().prefills] == ["other#0"]


def test_drafts_give_way_to_rows() -> None:
    room = Room(seats=100)
    scheduler = Scheduler(Limits(4, 6, 6), room)
    scheduler.waiting.extend(waiting_sequence(f"row{i}", 1, k=8) for i in range(4))
    advance(scheduler.schedule(), scheduler, room)
    assert [decode.max_draft for decode in scheduler.schedule().decodes] == [2, 0, 0, 0]
