from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler import waiting_sequence

from workers.kv_cache import KVCache, LayerShape
from workers.sequence import Sequence
from workers.slots import SlotTable, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def table(num_slots: int = 2, length: int = 64, *, max_slots: int = 4, capacity: int = 1024) -> SlotTable:
    cache = KVCache(
        [LayerShape(1, 1)],
        dtype=torch.float32,
        device=torch.device("cpu"),
        num_slots=num_slots,
        length=length,
    )
    return SlotTable(cache, max_slots=max_slots, capacity_tokens=capacity)


def seated(slots: SlotTable, name: str, prompt: list[int], *, computed: bool = True, max_tokens: int = 4) -> Sequence:
    """A sequence in a slot; the key of each computed token is the token itself."""
    sequence = waiting_sequence(name, len(prompt), max_tokens=max_tokens)
    sequence.tokens[:] = prompt
    assert slots.seat(sequence)
    if computed:
        rows = torch.tensor(prompt, dtype=torch.float32)[:, None, None].expand(-1, 2, 1)
        slots.cache.write(
            0, slots.cache.cells(torch.full((len(prompt),), sequence.slot), torch.arange(len(prompt)), 1), rows
        )
        sequence.num_computed = len(prompt)
    return sequence


def keys(slots: SlotTable, sequence: Sequence) -> list[int]:
    """The tokens whose keys the slot holds, as far as they are computed."""
    return [int(key) for key in slots.cache.layer(0)[0][sequence.slot, 0, : sequence.num_computed, 0]]


@given(TOKENS, TOKENS)
def test_the_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


def test_a_prefix_is_copied_from_a_running_sequence() -> None:
    slots = table()
    first = seated(slots, "first", list(range(1, 21)))
    second = seated(slots, "second", [*range(1, 13), 99, 98], computed=False)
    assert second.slot != first.slot
    assert second.num_computed == 12
    assert keys(slots, second) == list(range(1, 13))


def test_the_last_prompt_token_is_always_computed() -> None:
    slots = table()
    prompt = list(range(1, 21))
    seated(slots, "first", prompt)
    twin = seated(slots, "twin", prompt, computed=False)
    assert twin.num_computed == len(prompt) - 1


def test_a_freed_slot_is_taken_over_with_what_it_holds() -> None:
    slots = table()
    first = seated(slots, "first", list(range(1, 21)))
    other = seated(slots, "other", [50] * 20)
    slots.release(first)
    again = seated(slots, "again", [*range(1, 16), 77], computed=False)
    assert (again.slot, again.num_computed) == (first.slot, 15)
    slots.release(other)
    slots.release(again)
    third = seated(slots, "third", [*range(1, 16), 77, 78], computed=False)
    assert third.num_computed == 15, "a slot holds only what its last guest computed"


def test_a_poisoned_slot_is_not_shared() -> None:
    slots = table()
    first = seated(slots, "first", list(range(1, 21)))
    slots.release(first, poisoned=True)
    again = seated(slots, "again", list(range(1, 21)), computed=False)
    assert again.num_computed == 0
    assert not slots.cache.layer(0)[0][first.slot].any()


def test_short_prefixes_are_not_worth_a_copy() -> None:
    slots = table()
    seated(slots, "first", list(range(1, 21)))
    assert seated(slots, "second", [1, 2, 3, 99, 98], computed=False).num_computed == 0


def test_a_twin_waits_for_a_prefix_under_way() -> None:
    slots = table()
    prompt = list(range(1, 31))
    first = seated(slots, "first", prompt, computed=False)
    twin = waiting_sequence("twin", 30)
    twin.tokens[:] = prompt
    first.num_computed = 10
    assert slots.awaits_prefix(twin)
    first.num_computed = 30
    assert not slots.awaits_prefix(twin)
    slots.release(first)
    assert not slots.awaits_prefix(twin), "nobody is left to wait for"


def test_growing_moves_those_seated_with_their_keys() -> None:
    slots = table(num_slots=2, length=64, max_slots=4, capacity=1024)
    first = seated(slots, "first", [3] * 30)
    second = seated(slots, "second", [4] * 30)
    slots.release(first)
    third = seated(slots, "third", [5] * 70)
    assert second.slot == 0
    assert keys(slots, second) == [4] * 30
    assert keys(slots, third) == [5] * 70


def test_growing_gives_up_what_free_slots_held() -> None:
    slots = table(num_slots=4, length=64, max_slots=4, capacity=1024)
    guests = [seated(slots, f"row{i}", [10 + i] * 30) for i in range(4)]
    slots.release(guests[2])
    slots.release(guests[3])
    seated(slots, "long", [5] * 100)
    assert seated(slots, "again", [13] * 30, computed=False).num_computed == 0


def test_there_is_no_seat_beyond_the_budget() -> None:
    slots = table(num_slots=1, length=64, max_slots=8, capacity=128)
    seated(slots, "first", [1] * 20)
    seated(slots, "second", [2] * 20)
    assert not slots.seat(waiting_sequence("third", 20))
    assert not slots.seat(waiting_sequence("long", 100))
