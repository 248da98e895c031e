"""What drafting saves: blocks of rounds without drafts, each beside the rounds right before and after it.

Those have the same sequences at about the same lengths. Rounds with prefill are left out on both sides, and so is the
first round after a block, in which drafters catch up; what that took stands by itself, as a cost of measuring.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from workers.contract import Phase
from workers.draft_length.plain_blocks import BLOCK_ROUNDS


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


class Comparer:
    """Makes comparisons of rounds as they come."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=BLOCK_ROUNDS)
        self._open: Comparison | None = None
        self._is_in_block = False
        self._after = 0
        self._done: list[Comparison] = []

    def observe(self, phase: Phase, sequences: int, tokens: int, ns: int, *, has_prefill: bool) -> None:
        """A round with so many decoding sequences committed so many tokens."""
        if phase == "plain" and not self._is_in_block:
            self._begin()
        self._is_in_block = phase == "plain"
        if phase == "catching_up" and self._open is not None:
            self._open.catching_up_ns = ns
        elif phase == "plain" and not has_prefill and self._open is not None:
            self._open.plain.add(sequences, tokens, ns)
        elif phase == "drafting" and not has_prefill:
            self._recent.append((sequences, tokens, ns))
            self._note_after(sequences, tokens, ns)

    def drain(self) -> list[Comparison]:
        """Those that are complete, since the last call."""
        done, self._done = self._done, []
        return done

    def _begin(self) -> None:
        self._close()
        self._after = BLOCK_ROUNDS
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
