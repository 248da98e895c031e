"""What a round takes, by what is in it: a line through features, whatever the hardware.

    T = fixed + per sequence + per verified row (by segments) + per KV token + per prefill token
        + per drafter: steps (draft depths with anything in them) + rows drafted

A ragged round has no single K, but it has these. The price of a row depends on how many there are (weights are read
once for all rows; from some number on arithmetic is the limit), so rows are priced by segments.
Source of the idea: goodput-driven speculation, https://arxiv.org/abs/2406.14066.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from configs.hardware import HardwareProfile

SEGMENTS = (0, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Rows at which the price of a row may change."""

_ROW_FEATURES = tuple(f"rows_from_{start}" for start in SEGMENTS)


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What is in a round; expected numbers may be fractions."""

    num_seqs: int
    """Sequences that decode, each with a row of its own."""
    kv_tokens: int
    prefill_tokens: int = 0
    drafted: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Drafter -> drafts verified by depth."""

    @property
    def num_rows(self) -> float:
        """That the target verifies."""
        return self.num_seqs + sum(sum(by_depth) for by_depth in self.drafted.values())


class Cost(Protocol):
    """Prices a round."""

    def __call__(self, shape: RoundShape) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds per feature."""

    fixed: float
    per_seq: float
    per_row: Sequence[float]
    """By segment of SEGMENTS."""
    per_kv_token: float
    per_prefill_token: float
    per_draft_step: Mapping[str, float]
    per_draft_row: Mapping[str, float]

    @classmethod
    def of(cls, profile: HardwareProfile) -> LinearCost:
        """On that hardware. The price of a row changes at the next of SEGMENTS."""
        starts = sorted(profile.per_row_s)
        rows = (max(start for start in starts if start <= segment) for segment in SEGMENTS)
        return cls(
            fixed=profile.fixed_s,
            per_seq=profile.per_seq_s,
            per_row=tuple(profile.per_row_s[start] for start in rows),
            per_kv_token=profile.per_kv_token_s,
            per_prefill_token=profile.per_prefill_token_s,
            per_draft_step={name: each.per_step_s for name, each in profile.drafters.items()},
            per_draft_row={name: each.per_row_s for name, each in profile.drafters.items()},
        )

    def __call__(self, shape: RoundShape) -> float:
        seconds = self.fixed + self.per_seq * shape.num_seqs + self.per_kv_token * shape.kv_tokens
        seconds += self.per_prefill_token * shape.prefill_tokens
        seconds += sum(price * rows for price, rows in zip(self.per_row, by_segment(shape.num_rows), strict=False))
        for drafter, by_depth in shape.drafted.items():
            seconds += self.per_draft_step[drafter] * num_steps(by_depth)
            seconds += self.per_draft_row[drafter] * sum(by_depth)
        return seconds


def feature_names(drafters: Sequence[str]) -> tuple[str, ...]:
    """What a round is priced by."""
    of_drafters = (f"{drafter}_{part}" for drafter in drafters for part in ("steps", "rows"))
    return ("fixed", "seqs", "kv_tokens", *(f"rows_from_{start}" for start in SEGMENTS), *of_drafters)


def features(shape: RoundShape, names: Sequence[str]) -> NDArray[np.float64]:
    """The round's values of these features; one that it has and they lack is lost."""
    found = {"fixed": 1.0, "seqs": float(shape.num_seqs), "kv_tokens": float(shape.kv_tokens)}
    found |= zip(_ROW_FEATURES, by_segment(shape.num_rows), strict=False)
    for drafter, by_depth in shape.drafted.items():
        found[f"{drafter}_steps"], found[f"{drafter}_rows"] = num_steps(by_depth), sum(by_depth)
    return np.array([found.get(name, 0.0) for name in names])


def add_drafts(drafted: dict[str, list[float]], drafter: str, by_depth: Sequence[float]) -> None:
    """Count a sequence's drafts, or those of several, in `RoundShape.drafted`."""
    if by_depth:
        counts = drafted.setdefault(drafter, [])
        counts += [0.0] * (len(by_depth) - len(counts))
        for depth, drafts in enumerate(by_depth):
            counts[depth] += drafts


def by_segment(rows: float) -> list[float]:
    """How many of the rows fall into each segment, up to the last one that has any."""
    found = list[float]()
    for start, end in zip(SEGMENTS, (*SEGMENTS[1:], float("inf")), strict=True):
        if rows <= start:
            break
        found.append(min(rows, end) - start)
    return found


def num_steps(by_depth: Sequence[float]) -> float:
    """Passes of a drafter, expected: a depth that has less than one draft on average is often empty."""
    return sum(min(1.0, drafts) for drafts in by_depth)
