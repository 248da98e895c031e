"""What proposes tokens for the target to verify.

A drafter keeps whatever it needs per sequence (an index here; a cache of its own for one with weights) under the
sequence's id, catches up with the committed tokens when it is asked to propose, and drops its state at `forget`. Since
the verification is exact, a drafter can make generation slower but never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DraftContext:
    """A sequence that may be drafted for."""

    sequence_id: str
    tokens: Sequence[int]
    """Prompt and committed output. Only ever grows between two calls."""
    max_draft: int
    """Tokens to propose at most."""


class Drafter(Protocol):
    """Proposes a chain of tokens per sequence."""

    name: str

    def propose(self, contexts: Sequence[DraftContext]) -> list[list[int]]:
        """A draft per context, each of 0 to `max_draft` tokens."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended; unknown ids are fine."""
        ...
