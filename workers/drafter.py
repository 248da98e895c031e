"""What proposes tokens for the target to verify.

A drafter keeps whatever it needs per sequence (an index; keys and values in a layer of the cache) and catches up with
the committed tokens when it is asked to propose. Since the verification is exact, a drafter can make generation slower
but never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Drafted(Protocol):
    """What a drafter sees of a sequence."""

    num_pairs: int
    """Positions for which a draft head's keys and values are in the slot; the head's to count."""

    @property
    def id(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output. Only ever grows between two calls."""
        ...

    @property
    def slot(self) -> int:
        """Its place in the cache, which may change between two calls."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A sequence to draft for."""

    sequence: Drafted
    max_draft: int
    """Tokens to propose at most."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Tokens of a sequence that the target has gone over and that stay."""

    sequence: Drafted
    start: int
    """Position of the first."""
    first_row: int
    """Its row in the pass."""
    num_rows: int
    is_prefill: bool


class Drafter(Protocol):
    """Proposes a chain of tokens per sequence."""

    name: str

    def observe(self, seen: Sequence[Seen], taps: Tensor) -> None:
        """Called after each pass of the target with the rows of this drafter's sequences; `taps` [N, 3H] are the hidden
        states captured for all rows of the pass."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """A draft per ask, each of 0 to `max_draft` tokens."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended; unknown ids are fine."""
        ...
