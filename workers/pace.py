"""How a round drafted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workers.contract import Phase, SequenceRound


@dataclass(frozen=True, slots=True)
class Pace:
    """See `contract.Round`, whose fields these are."""

    drafted: Mapping[str, tuple[int, ...]]
    phase: Phase
    is_usual: bool
    sequences: tuple[SequenceRound, ...]
