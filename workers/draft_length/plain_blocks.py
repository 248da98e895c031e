"""What speculation saves, measured while it runs: now and then a block of rounds in which nobody drafts.

Blocks begin at random, so they meet the run as it is: every task, batch and length in proportion. A block of plain
rounds is compared with the rounds right before and after it, which have the same sequences at about the same lengths.
Rounds with prefill are left out on both sides, and the first round after a block, in which drafters catch up, too; what
that round took stands by itself, as a cost of measuring.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

BLOCK_ROUNDS = 32

Phase = Literal["drafting", "plain", "catching_up"]


@dataclass(slots=True)
class Side:
    """Rounds of one kind next to a block."""

    rounds: int = 0
    sequences: int = 0
    """Summed over rounds."""
    tokens: int = 0
    ns: int = 0

    def add(self, sequences: int, tokens: int, ns: int) -> None:
        self.rounds += 1
        self.sequences += sequences
        self.tokens += tokens
        self.ns += ns


@dataclass(slots=True)
class Comparison:
    """One block and its neighbours."""

    plain: Side = field(default_factory=Side)
    drafting: Side = field(default_factory=Side)
    catching_up_ns: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Comparison:
        return cls(Side(**data["plain"]), Side(**data["drafting"]), data["catching_up_ns"])


class PlainBlocks:
    """Says which rounds are plain, and compares them."""

    def __init__(self, share: float, seed: int) -> None:
        """`share`: of all rounds, 0 for none at all."""
        self._chance = share / (BLOCK_ROUNDS * (1 - share))
        self._random = random.Random(seed)
        self._left = 0
        self._after = 0
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=BLOCK_ROUNDS)
        self._open: Comparison | None = None
        self._done: list[Comparison] = []
        self._phase: Phase = "drafting"

    def next_round(self) -> Phase:
        """Of the round that begins. Called once per round with drafts to be had; rounds that could not draft anyway
        are not asked about."""
        if self._left == 0 and self._random.random() < self._chance:
            self._begin()
        if self._left:
            self._left -= 1
            self._phase = "plain"
        else:
            self._phase = "catching_up" if self._phase == "plain" else "drafting"
        return self._phase

    def observe(self, sequences: int, tokens: int, ns: int, *, has_prefill: bool) -> None:
        """What came of that round."""
        if self._phase == "catching_up":
            if self._open is not None:
                self._open.catching_up_ns = ns
        elif has_prefill:
            return
        elif self._phase == "plain":
            assert self._open is not None
            self._open.plain.add(sequences, tokens, ns)
        else:
            self._recent.append((sequences, tokens, ns))
            self._note_after(sequences, tokens, ns)

    def drain(self) -> list[Comparison]:
        """Those that are complete, since the last call."""
        done, self._done = self._done, []
        return done

    def _begin(self) -> None:
        self._close()
        self._left, self._after = BLOCK_ROUNDS, BLOCK_ROUNDS
        self._open = Comparison()
        for each in self._recent:
            self._open.drafting.add(*each)
        self._recent.clear()

    def _note_after(self, sequences: int, tokens: int, ns: int) -> None:
        if self._open is None:
            return
        self._open.drafting.add(sequences, tokens, ns)
        self._after -= 1
        if self._after == 0:
            self._close()

    def _close(self) -> None:
        """Keep a comparison that has two sides."""
        if self._open is not None and self._open.plain.rounds and self._open.drafting.rounds:
            self._done.append(self._open)
        self._open = None
