"""Keys and values of the tokens seen so far, and what a draft head reads of them: one slot per running sequence.

A slot is a row of places, in which a sequence's tokens lie in order. How many of them are valid is the sequence's own
count (`Sequence.num_computed`): rolling back rejected drafts is lowering that count, and the next forward overwrites
what lies above it. Of a draft tree, the accepted branch is moved together first.

Memory is bounded in tokens: slots × length never exceeds `capacity_tokens`. Both grow only when a request needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LENGTH_STEP = 64


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer keeps of a token: a key and a value per key head."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class TapShape:
    """What is kept of a token for a draft head, as it is: the hidden states that the head reads, side by side."""

    size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Rows:
    """What one tensor keeps of a token."""

    count: int
    size: int
    dtype: torch.dtype


class KVCache:
    """Per layer one tensor [slots, 2 · kv_heads, length, head_dim]: the keys, then the values. A draft head's layer is
    one more, and what it reads of the target [slots, 1, length, taps] is another, so that they move and are shared with
    their sequence."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_slots: int,
        length: int,
        taps: TapShape | None = None,
    ) -> None:
        self.num_slots = num_slots
        self.length = length
        self._dtype = dtype
        self._device = device
        self._shapes = [_Rows(2 * layer.num_kv_heads, layer.head_dim, dtype) for layer in layers]
        if taps is not None:
            self._shapes.append(_Rows(1, taps.size, taps.dtype))
        self._layers = [self._empty(shape) for shape in self._shapes]

    def _empty(self, rows: _Rows) -> Tensor:
        """Zeros: attention multiplies masked values by 0, and 0 × NaN left in fresh memory would be NaN."""
        shape = (self.num_slots, rows.count, self.length, rows.size)
        return torch.zeros(shape, dtype=rows.dtype, device=self._device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [slots, kv_heads, length, head_dim]."""
        keys, values = self._layers[index].chunk(2, dim=1)
        return keys, values

    def cells(self, slots_N: Tensor, places_N: Tensor, num_kv_heads: int) -> Tensor:
        """Where (slot, place) lies in a layer of so many key heads; for `write` [N · 2 · kv_heads]."""
        return self._cells(slots_N, places_N, 2 * num_kv_heads)

    def _cells(self, slots_N: Tensor, places_N: Tensor, count: int) -> Tensor:
        rows = slots_N[:, None] * count + torch.arange(count, device=self._device)
        return (rows * self.length + places_N[:, None]).flatten()

    def write(self, layer: int, cells: Tensor, keys_values: Tensor) -> None:
        """Put `keys_values` [N, 2 · kv_heads, head_dim] in their cells, rounded to what the cache keeps."""
        rows = self._raw(self._layers[layer]).view(-1, self._shapes[layer].size)
        rows.index_copy_(0, cells, self._raw(_rounded(keys_values.flatten(0, 1), self._dtype)))

    def write_taps(self, slots_N: Tensor, places_N: Tensor, taps_NT: Tensor) -> None:
        """Keep what a draft head will read of these tokens."""
        self._layers[-1].view(-1, taps_NT.shape[1]).index_copy_(0, self._cells(slots_N, places_N, 1), taps_NT)

    def taps(self, slots_N: Tensor, places_N: Tensor) -> Tensor:
        """[N, taps] of tokens, as they were written."""
        rows = self._layers[-1]
        return rows.view(-1, rows.shape[-1]).index_select(0, self._cells(slots_N, places_N, 1))

    def move(self, slots_N: Tensor, sources_N: Tensor, targets_N: Tensor) -> None:
        """Put what lies at the places `sources` of the slots at `targets`; all are read before any is written."""
        for tensor, shape in zip(self._layers, self._shapes, strict=True):
            rows = self._raw(tensor).view(-1, shape.size)
            read = rows.index_select(0, self._cells(slots_N, sources_N, shape.count))
            rows.index_copy_(0, self._cells(slots_N, targets_N, shape.count), read)

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Make the first tokens of one slot those of another."""
        for tensor in self._layers:
            tensor[target, :, :num_tokens] = tensor[source, :, :num_tokens]

    def clear(self, slot: int) -> None:
        """Zero a slot that holds numbers which are not finite."""
        for tensor in self._layers:
            tensor[slot] = 0

    def reshape(self, num_slots: int, length: int, moves: Mapping[int, int]) -> None:
        """Change the number and length of slots, carrying `moves` (old slot -> new slot). Layer by layer, so that only
        one layer exists twice at a time."""
        kept = min(length, self.length)
        self.num_slots, self.length = num_slots, length
        for layer, old in enumerate(self._layers):
            self._layers[layer] = new = self._empty(self._shapes[layer])
            for source, target in moves.items():
                new[target, :, :kept] = old[source, :, :kept]

    @staticmethod
    def _raw(tensor: Tensor) -> Tensor:
        """Eight-bit floats as bytes: torch cannot index them as they are."""
        return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Eight-bit floats have no infinity: what is too large becomes their largest, and NaN stays."""
    if dtype.itemsize == 1:
        x = x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return x.to(dtype)


def fitting_shape(
    needs: Iterable[int], shape: tuple[int, int], *, max_slots: int, capacity_tokens: int
) -> tuple[int, int] | None:
    """The (slots, length) in which requests of these lengths run together, or None if they cannot.

    The present shape is kept while it serves. It grows in length to the longest need, in slots by doubling, and becomes
    shorter only if that is what makes room for the slots.
    """
    needs, (slots, length) = list(needs), shape
    if max(needs) > capacity_tokens:
        return None
    if len(needs) <= slots and max(needs) <= length:
        return shape
    longest = min(-(-max(needs) // _LENGTH_STEP) * _LENGTH_STEP, capacity_tokens)
    length = max(length, longest)
    if length * len(needs) > capacity_tokens:
        length = longest
    most = min(max_slots, capacity_tokens // length)
    if len(needs) > most:
        return None
    wanted = slots if slots >= len(needs) else max(len(needs), 2 * slots)
    return min(wanted, most), length
