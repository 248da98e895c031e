"""Which sequences take part in the next forward pass, and with how many rows. Knows no tensors.

Decoding comes first, since it frees slots; then prompts under way, then new requests in order of arrival, as long as
the budget of rows lasts. A prompt is prefilled in chunks beside the decoding of others. A request is admitted only if
its slot holds its prompt and all its output, so nothing is ever preempted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from workers.sequence import Sequence


class Seats(Protocol):
    """Room for sequences; see SlotTable."""

    def seat(self, sequence: Sequence) -> bool: ...

    def awaits_prefix(self, sequence: Sequence) -> bool: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one forward pass."""

    max_num_seqs: int
    max_batched_tokens: int
    """Rows at most, drafts and prefill included."""
    prefill_chunk_tokens: int
    """Prompt rows at most."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The next `num_tokens` of a prompt."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        return self.sequence.num_computed + self.num_tokens == self.sequence.num_prompt


@dataclass(frozen=True, slots=True)
class Decode:
    """One round of a sequence, with a draft of up to `max_draft` tokens in a row."""

    sequence: Sequence
    max_draft: int
    max_nodes: int
    """Drafts at most; more than `max_draft` in a tree."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One forward pass."""

    decodes: list[Decode]
    prefills: list[Prefill]

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills


class Scheduler:
    """Queue and running set."""

    def __init__(self, limits: Limits, seats: Seats) -> None:
        self._limits = limits
        self._seats = seats
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or never began."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)

    def schedule(self) -> Schedule:
        """Admit what fits and divide the rows. The running set changes by admission only."""
        decodes = self._decodes([sequence for sequence in self.running if not sequence.is_prefilling])
        budget = self._limits.max_batched_tokens - sum(1 + decode.max_nodes for decode in decodes)
        return Schedule(decodes, self._prefills(min(budget, self._limits.prefill_chunk_tokens)))

    def _decodes(self, sequences: list[Sequence]) -> list[Decode]:
        """Every sequence gets its row; drafts share what the budget leaves, first come first served."""
        rows_left = self._limits.max_batched_tokens - len(sequences)
        decodes = []
        for sequence in sequences:
            # A round yields one token more than it accepts, so a longer draft could only be truncated.
            draft = min(sequence.draft_len, sequence.num_left - 1, rows_left)
            # A chain has a node per depth, a tree more.
            most = sequence.max_nodes if sequence.max_nodes > sequence.max_draft else draft
            nodes = min(most, sequence.num_left - 1 + sequence.spare, rows_left) if draft else 0
            rows_left -= nodes
            decodes.append(Decode(sequence, draft, nodes))
        return decodes

    def _prefills(self, budget: int) -> list[Prefill]:
        prefills = []
        for sequence in [sequence for sequence in self.running if sequence.is_prefilling]:
            if budget > 0:
                prefills.append(self._chunk(sequence, budget))
                budget -= prefills[-1].num_tokens
        while budget > 0 and (admitted := self._admit()) is not None:
            prefills.append(self._chunk(admitted, budget))
            budget -= prefills[-1].num_tokens
        return prefills

    @staticmethod
    def _chunk(sequence: Sequence, budget: int) -> Prefill:
        return Prefill(sequence, min(budget, sequence.num_prompt - sequence.num_computed))

    def _admit(self) -> Sequence | None:
        """The first waiting request that need not wait for another's prefix, if there is room for it. Those behind it
        do not overtake it: a long request would never get its turn."""
        most = min(self._limits.max_num_seqs, self._limits.max_batched_tokens)
        if len(self.running) >= most:
            return None
        for place, sequence in enumerate(islice(self.waiting, most)):
            if self._seats.awaits_prefix(sequence):
                continue
            if not self._seats.seat(sequence):
                return None
            del self.waiting[place]
            self.running.append(sequence)
            return sequence
        return None
