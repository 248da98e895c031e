"""What proposes tokens for the target to verify.

A drafter keeps whatever it needs per sequence (an index; keys and values in a layer of the cache) and catches up with
the committed tokens when it is asked to propose, so one that is not asked costs nothing. Since the verification is
exact, a drafter can make generation slower but never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from configs.job import DraftTree, Sampling
from workers.acceptance import Law, Tree


class Drafted(Protocol):
    """What a drafter sees of a sequence."""

    num_followed: int
    """Positions for which the drafter's keys and values are in the slot; the drafter's to count."""

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
class Chance:
    """That drafts are to be drawn from the drafter's own law, not to be its likeliest tokens."""

    sampling: Sampling
    """Temperature and cut-offs apply to the drafter's law as they do to the target's, so that they overlap."""
    key: tuple[int, int]
    """`noise.sequence_key` of the sample."""
    position: int
    """Of the first draft in the output."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A sequence to draft for."""

    sequence: Drafted
    max_draft: int
    """Tokens to propose at most, one after the other."""
    tree: DraftTree | None = None
    """Propose branches, if the drafter can."""
    max_nodes: int = 0
    """Of a tree at most."""
    chance: Chance | None = None
    """Of a chain; a drafter whose tokens are certain need not care."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is proposed for a sequence."""

    tree: Tree
    laws: Sequence[Law[float]] | None = None
    """That each node was drawn from; None: the tokens are certain."""

    @property
    def certain_or_laws(self) -> Sequence[Law[float]]:
        """Of each node; a certain token is a law, too."""
        return [{token: 1.0} for token in self.tree.tokens] if self.laws is None else self.laws


NOTHING = Draft(Tree((), ()))


class Drafter(Protocol):
    """Proposes what may follow each sequence."""

    name: str
    follows: bool
    """It keeps keys and values of its own, in the slots of its sequences."""
    draws_trees: bool

    def catch_up(self, sequences: Sequence[Drafted]) -> None:
        """Work through what is new of sequences that the next round drafts for, before others copy their slots."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A draft per ask, which may be empty."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended; unknown ids are fine."""
        ...
