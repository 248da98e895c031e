"""Rounds that are drawn instead of computed: how a draft-length policy would do on given tasks and hardware.

A simulated batch is always full: a sequence that ends is followed by the next of its task. Acceptance is drawn from the
task's hazards, time is told by a cost model, so two policies differ by their lengths alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.cost import Cost, RoundShape

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """A stream of sequences."""

    name: str
    hazards: Callable[[int], Sequence[float]]
    """Tokens of the task so far -> P(accepted | those before were), by draft position."""
    mean_tokens: int = 200
    """Output length of a sequence; lengths are geometric."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulated round, by sequence."""

    tasks: Ints
    drafted: Ints
    accepted: Ints
    is_new: NDArray[np.bool_]
    """The sequence began with this round."""
    seconds: float


class LengthPolicy(Protocol):
    """Chooses draft lengths."""

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        """Draft length of each sequence."""
        ...

    def record(self, outcome: Outcome, shape: RoundShape) -> None: ...


@dataclass(slots=True)
class Spent:
    """Of one task."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Simulation:
    """A batch on its way through tasks."""

    tasks: Sequence[SimulatedTask]
    cost: Cost
    drafter: str = "eagle3"
    context_tokens: int = 600
    """KV tokens of a sequence."""
    seed: int = 0
    spent: dict[str, Spent] = field(default_factory=dict)

    def run(self, policy: LengthPolicy, batch: Ints, num_tokens: int) -> None:
        """Rounds of the sequences of `batch` (a task's number each) until they made `num_tokens` more. A round's time
        is split over its tasks by sequences."""
        rng = np.random.default_rng(self.seed)
        self.seed += 1
        is_new = np.ones(len(batch), dtype=bool)
        ends = np.array([1.0 / self.tasks[task].mean_tokens for task in batch])
        made = 0
        while made < num_tokens:
            made += self._round(policy, batch, is_new, rng)
            is_new = rng.random(len(batch)) < ends

    def _round(self, policy: LengthPolicy, batch: Ints, is_new: NDArray[np.bool_], rng: np.random.Generator) -> int:
        kv_tokens = self.context_tokens * len(batch)
        drafted = policy.plan(batch, is_new, kv_tokens)
        accepted = self._accepted(batch, drafted, rng)
        by_depth = [float((drafted > depth).sum()) for depth in range(int(drafted.max(initial=0)))]
        shape = RoundShape(len(batch), kv_tokens, 0, {self.drafter: by_depth} if by_depth else {})
        seconds = self.cost(shape)
        self._spend(batch, accepted, seconds)
        policy.record(Outcome(batch, drafted, accepted, is_new, seconds), shape)
        return int(len(batch) + accepted.sum())

    def _accepted(self, batch: Ints, drafted: Ints, rng: np.random.Generator) -> Ints:
        hazards = np.array([self.tasks[task].hazards(self._made(task)) for task in range(len(self.tasks))])
        draws = rng.random((len(batch), MAX_DRAFT_LEN)) < hazards[batch]
        kept = draws & (np.arange(MAX_DRAFT_LEN) < drafted[:, None])
        accepted: Ints = np.logical_and.accumulate(kept, axis=1).sum(axis=1)
        return accepted

    def _made(self, task: int) -> int:
        name = self.tasks[task].name
        return self.spent[name].tokens if name in self.spent else 0

    def _spend(self, batch: Ints, accepted: Ints, seconds: float) -> None:
        for task in np.unique(batch):
            mine = batch == task
            spent = self.spent.setdefault(self.tasks[task].name, Spent())
            spent.tokens += int(mine.sum() + accepted[mine].sum())
            spent.seconds += seconds * float(mine.mean())
            spent.rounds += 1
