"""The rows of one forward pass, flattened: every token of every sequence is one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.attention import AttentionPlan, Branches, Span


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one sequence that enter a forward pass."""

    slot: int
    start: int
    """Place of the first token; all before it are in the cache."""
    token_ids: Sequence[int]
    num_logits: int
    """The last rows, whose next-token logits are wanted."""
    branches: Branches | None = None
    """For rows of a draft tree. Otherwise each token stands behind the one before, and its place is its position."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one forward pass; rows stand in slot order."""

    token_ids: Tensor
    """[N]"""
    positions: Tensor
    """[N] of each token in its text"""
    slots: Tensor
    """[N]"""
    places: Tensor
    """[N] of its keys and values in its slot"""
    logit_rows: Tensor
    """[R] rows whose logits are wanted, in the order of the segments given."""
    attention: AttentionPlan


def build_batch(segments: Sequence[Segment], *, sharing: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Flatten segments. `sharing`: query heads per key head. Logits keep the order of `segments`, whatever the order of
    their slots."""
    order = sorted(range(len(segments)), key=lambda i: segments[i].slot)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    places: list[int] = []
    end_of = [0] * len(segments)
    for i in order:
        segment = segments[i]
        rows = len(segment.token_ids)
        token_ids += segment.token_ids
        behind = range(segment.start, segment.start + rows)
        positions += behind if segment.branches is None else segment.branches.positions
        slots += [segment.slot] * rows
        places += behind
        end_of[i] = len(token_ids)
    logit_rows = [row for end, s in zip(end_of, segments, strict=True) for row in range(end - s.num_logits, end)]
    columns = torch.tensor([token_ids, positions, slots, places], device=device)
    return Batch(
        token_ids=columns[0],
        positions=columns[1],
        slots=columns[2],
        places=columns[3],
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        attention=AttentionPlan([_span(segments[i]) for i in order], sharing=sharing, dtype=dtype, device=device),
    )


def _span(segment: Segment) -> Span:
    return Span(segment.slot, segment.start, len(segment.token_ids), segment.branches)
