"""Sequences as a drafter sees them, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.drafter import Ask


@dataclass
class Plain:
    id: str
    tokens: Sequence[int]
    slot: int = 0
    num_followed: int = 0


def ask(sequence_id: str, tokens: Sequence[int], max_draft: int) -> Ask:
    return Ask(Plain(sequence_id, tokens), max_draft)
