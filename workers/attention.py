"""Attention of a ragged batch over the slot cache.

The rows of a forward pass belong to spans, one per sequence: a decoding sequence brings 1 + K rows, a prefill chunk
many. Spans in neighbouring slots are attended to together where the padding this takes costs less than another call.
Rows of a group are padded to its longest span, keys to its longest context.

Letters in names: N rows, B spans of a group, Q rows per span, H heads, K key heads, G = H/K heads that share a key
head, S context, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CALL_COST = {"cpu": 800, "cuda": 20_000}
"""What one more call costs, in the unit of `_work`. CPU: measured in whole steps, where a call costs its views and cold
caches besides its 9 µs (against 0.1 µs per token): 4 % of a step of 16 sequences against 80; CUDA: a guess."""
_MAX_FOLDED_ROWS = 16
"""Up to here the heads of a group become rows of one small product; above, the kernel's own head sharing is faster."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Rows that do not simply follow each other but belong to a draft tree, which lies in a slot from `root` on."""

    root: int
    """The tree's first place; a row sees all places before it."""
    sees: tuple[int, ...]
    """Of each row, bit j: whether it sees place root + j. Its own bit is set, the highest of them."""

    @property
    def positions(self) -> list[int]:
        """Of each row in its text: what it sees of the tree are its ancestors and itself."""
        return [self.root + each.bit_count() - 1 for each in self.sees]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence: places `start … start + num_rows - 1` of its slot."""

    slot: int
    start: int
    num_rows: int
    branches: Branches | None = None
    """None if each row sees all places up to its own."""

    @property
    def context(self) -> int:
        """Keys that the last row sees."""
        return self.start + self.num_rows


def group_spans(spans: Sequence[Span], call_cost: int) -> list[list[Span]]:
    """Cut spans (in slot order) into runs to attend to together, by comparing padded work with the cost of a call."""
    groups: list[list[Span]] = []
    for span in spans:
        if groups and _work([*groups[-1], span]) <= _work(groups[-1]) + _work([span]) + call_cost:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _work(spans: Sequence[Span]) -> int:
    """Padded work, in units of a one-row span per context token. A further row costs about a quarter of the first,
    which brings the keys in; empty slots inside the run are padding too."""
    num_slots = spans[-1].slot - spans[0].slot + 1
    rows = max(span.num_rows for span in spans)
    context = max(span.context for span in spans)
    return num_slots * context * (3 + rows) // 4


class AttentionPlan:
    """How the rows of one forward pass attend; made once, used by every layer."""

    def __init__(self, spans: Sequence[Span], *, sharing: int, dtype: torch.dtype, device: torch.device) -> None:
        """`spans` in slot order, whose rows follow each other in the batch; `sharing` query heads share a key head."""
        groups = group_spans(spans, CALL_COST.get(device.type, CALL_COST["cuda"]))
        self._groups: list[_Group] = []
        first_row = 0
        for group in groups:
            self._groups.append(_Group(group, first_row, sharing=sharing, dtype=dtype, device=device))
            first_row += sum(span.num_rows for span in group)

    def attend(self, queries_NHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`keys`, `values`: a layer's cache [slots, K, length, D], the new rows included -> [N, H·D]"""
        outputs = [group.attend(queries_NHD, keys, values) for group in self._groups]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Group:
    """Spans attended to in one call."""

    def __init__(
        self, spans: Sequence[Span], first_row: int, *, sharing: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slice(spans[0].slot, spans[-1].slot + 1)
        self.context = max(span.context for span in spans)
        self.rows_per_span = max(span.num_rows for span in spans)
        self.rows = slice(first_row, first_row + sum(span.num_rows for span in spans))
        self._pad = _padding(spans, first_row, device)
        self._sharing = sharing
        self._folds = sharing > 1 and _folds(self.rows_per_span, device)
        mask = _mask(spans, self.rows_per_span, self.context, dtype, device)
        self._mask = mask.repeat_interleave(sharing, dim=2) if mask is not None and self._folds else mask

    def attend(self, queries_NHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys_BKSD = keys[self.slots, :, : self.context].to(queries_NHD.dtype)
        values_BKSD = values[self.slots, :, : self.context].to(queries_NHD.dtype)
        rows_NHD = queries_NHD[self.rows] if self._pad is None else queries_NHD.index_select(0, self._pad.gather)
        queries_BQHD = rows_NHD.view(-1, self.rows_per_span, *rows_NHD.shape[1:])
        product = self._folded_product if self._folds else self._product
        out = product(queries_BQHD, keys_BKSD, values_BKSD)
        return out if self._pad is None else out.index_select(0, self._pad.scatter)

    def _product(self, queries_BQHD: Tensor, keys_BKSD: Tensor, values_BKSD: Tensor) -> Tensor:
        out_BHQD = F.scaled_dot_product_attention(
            queries_BQHD.transpose(1, 2), keys_BKSD, values_BKSD, attn_mask=self._mask, enable_gqa=self._sharing > 1
        )
        return out_BHQD.transpose(1, 2).flatten(2).flatten(0, 1)

    def _folded_product(self, queries_BQHD: Tensor, keys_BKSD: Tensor, values_BKSD: Tensor) -> Tensor:
        """Heads that share keys become rows, so that each key is read once for all of them."""
        spans, rows, heads, size = queries_BQHD.shape
        queries_BKQGD = queries_BQHD.view(spans, rows, heads // self._sharing, self._sharing, size).transpose(1, 2)
        out = F.scaled_dot_product_attention(queries_BKQGD.flatten(2, 3), keys_BKSD, values_BKSD, attn_mask=self._mask)
        out_BKQGD = out.view(spans, heads // self._sharing, rows, self._sharing, size)
        return out_BKQGD.transpose(1, 2).reshape(spans * rows, heads * size)


def _folds(rows_per_span: int, device: torch.device) -> bool:
    """On a CPU a single row per head runs as a matrix-vector product, which is faster unfolded (measured)."""
    return rows_per_span <= _MAX_FOLDED_ROWS and not (device.type == "cpu" and rows_per_span == 1)


@dataclass(frozen=True, slots=True)
class _Padding:
    gather: Tensor
    """[B·Q] row of the batch for each padded row; padding repeats some row of the group."""
    scatter: Tensor
    """[rows of the group] padded row of each real one."""


def _padding(spans: Sequence[Span], first_row: int, device: torch.device) -> _Padding | None:
    """None if the group's rows already are a full [B, Q] block."""
    rows = max(span.num_rows for span in spans)
    first_slot, num_slots = spans[0].slot, spans[-1].slot - spans[0].slot + 1
    if num_slots == len(spans) and all(span.num_rows == rows for span in spans):
        return None
    gather = [first_row] * (num_slots * rows)
    scatter: list[int] = []
    row = first_row
    for span in spans:
        at = (span.slot - first_slot) * rows
        gather[at : at + rows] = [row + min(i, span.num_rows - 1) for i in range(rows)]
        scatter += range(at, at + span.num_rows)
        row += span.num_rows
    return _Padding(torch.tensor(gather, device=device), torch.tensor(scatter, device=device))


def _mask(spans: Sequence[Span], rows: int, context: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """[B, 1, Q, S] 0 where a row sees a key, -inf elsewhere; None if every row sees all. Rows of empty slots see the
    first key, so that no row sees none."""
    first_slot, num_slots = spans[0].slot, spans[-1].slot - spans[0].slot + 1
    trees = [span for span in spans if span.branches is not None]
    if rows == 1 and num_slots == len(spans) and not trees and all(span.context == context for span in spans):
        return None
    last_seen = [0] * num_slots
    for span in spans:
        last_seen[span.slot - first_slot] = span.start
    sees_BQ = torch.tensor(last_seen, device=device)[:, None] + torch.arange(rows, device=device)
    hidden_BQS = torch.arange(context, device=device) > sees_BQ[..., None]
    for span in trees:
        hidden_BQS[span.slot - first_slot, : span.num_rows, _tree_of(span)] |= _other_branches(span, device)
    return torch.zeros(hidden_BQS.shape, dtype=dtype, device=device).masked_fill_(hidden_BQS, -torch.inf)[:, None]


def _tree_of(span: Span) -> slice:
    assert span.branches is not None
    return slice(span.branches.root, span.context)


def _other_branches(span: Span, device: torch.device) -> Tensor:
    """[rows, places of the tree so far] True where a row does not see a place."""
    assert span.branches is not None
    sees_Q = torch.tensor(span.branches.sees, device=device)
    return (sees_Q[:, None] >> torch.arange(span.context - span.branches.root, device=device)) & 1 == 0
