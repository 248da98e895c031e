from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.kv_cache import KVCache, LayerShape, fitting_shape

NEEDS = st.lists(st.integers(1, 2000), min_size=1, max_size=20)


def small_cache(num_slots: int, length: int) -> KVCache:
    return KVCache(
        [LayerShape(3, 4)] * 2,
        dtype=torch.float32,
        device=torch.device("cpu"),
        num_slots=num_slots,
        length=length,
    )


def fill(cache: KVCache, slot: int, tokens: int) -> torch.Tensor:
    """Write random rows; returns them [layers, tokens, 2K, D]."""
    rows = torch.randn(2, tokens, 6, 4)
    places = cache.cells(torch.full((tokens,), slot), torch.arange(tokens), 3)
    for layer in range(2):
        cache.write(layer, places, rows[layer])
    return rows


def read(cache: KVCache, slot: int, tokens: int) -> torch.Tensor:
    return torch.stack([torch.cat(cache.layer(i), dim=1)[slot, :, :tokens].transpose(0, 1) for i in range(2)])


@given(NEEDS, st.integers(1, 20), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12_000))
def test_a_shape_serves_everybody_within_the_budget(
    needs: list[int], max_slots: int, slots: int, steps: int, capacity: int
) -> None:
    slots, length = min(slots, max_slots), steps * 64
    capacity = max(capacity, slots * length)
    shape = fitting_shape(needs, (slots, length), max_slots=max_slots, capacity_tokens=capacity)
    if shape is None:
        rounded = -(-max(needs) // 64) * 64
        assert len(needs) > max_slots or len(needs) * rounded > capacity
    else:
        assert len(needs) <= shape[0] <= max_slots
        assert max(needs) <= shape[1]
        assert shape[0] * shape[1] <= capacity
        if len(needs) <= slots and max(needs) <= length:
            assert shape == (slots, length), "a shape that serves is kept"


def test_a_lone_request_gets_all_there_is() -> None:
    assert fitting_shape([100], (1, 64), max_slots=4, capacity_tokens=100) == (1, 100)
    assert fitting_shape([101], (1, 64), max_slots=4, capacity_tokens=100) is None


def test_length_is_given_back_for_slots() -> None:
    assert fitting_shape([64, 64, 64], (2, 512), max_slots=8, capacity_tokens=1024) == (4, 64)


def test_rows_come_back_as_written() -> None:
    cache = small_cache(3, 8)
    first, last = fill(cache, 0, 5), fill(cache, 2, 8)
    assert torch.equal(read(cache, 0, 5), first)
    assert torch.equal(read(cache, 2, 8), last)
    assert not read(cache, 1, 8).any()


def test_a_prefix_is_copied_and_a_slot_cleared() -> None:
    cache = small_cache(3, 8)
    rows = fill(cache, 2, 8)
    cache.copy_prefix(2, 0, 5)
    assert torch.equal(read(cache, 0, 5), rows[:, :5])
    assert not read(cache, 0, 8)[:, 5:].any()
    cache.clear(2)
    assert not read(cache, 2, 8).any()


def test_a_new_shape_keeps_what_is_moved() -> None:
    cache = small_cache(4, 8)
    rows = fill(cache, 3, 6)
    cache.reshape(2, 16, {3: 1})
    assert torch.equal(read(cache, 1, 6), rows)
    assert not read(cache, 0, 16).any()
    more = fill(cache, 1, 16)
    assert torch.equal(read(cache, 1, 16), more)
