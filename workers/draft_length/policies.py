"""Ways to choose draft lengths in a simulation: the controller, and what the field does instead.

Fixed         one length                                        vLLM, TensorRT-LLM
Heuristic     two more after a full success, else one less      transformers, `num_assistant_tokens_schedule`
EmaTiers      steps 1, 3, 5, 7 by a moving average              SGLang's adaptive speculation
Fallback      a fixed length, and none for a while after two rounds on end without success
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.controller import DraftLengthController, Standing, Tally
from workers.draft_length.cost import RoundShape
from workers.draft_length.simulation import Ints, Outcome
from workers.draft_length.stratum import Stratum


class Controlled:
    """The controller."""

    def __init__(self, controller: DraftLengthController, strata: list[Stratum]) -> None:
        """`strata`: by number of the task."""
        self.controller = controller
        self._strata = strata

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        counts = np.bincount(tasks, minlength=len(self._strata))
        present = np.flatnonzero(counts)
        standings = [Standing(self._strata[task], int(counts[task])) for task in present]
        plan = self.controller.plan(standings, kv_tokens=kv_tokens)
        by_task = np.zeros(len(self._strata), dtype=np.int64)
        by_task[present] = plan.lengths
        lengths = by_task[tasks]
        for task, num_seqs in zip(present, plan.probed, strict=False):
            lengths[np.flatnonzero(tasks == task)[:num_seqs]] = 1
        return lengths

    def record(self, outcome: Outcome, shape: RoundShape) -> None:
        rows = np.stack([outcome.tasks, outcome.drafted, outcome.accepted], axis=1)
        kinds, counts = np.unique(rows, axis=0, return_counts=True)
        tallies = [
            Tally(self._strata[task], drafted, drafted, accepted, times)
            for (task, drafted, accepted), times in zip(kinds.tolist(), counts.tolist(), strict=True)
            if drafted
        ]
        self.controller.record(shape, round(outcome.seconds * 1e9), tallies)


class Fixed:
    def __init__(self, k: int) -> None:
        self._k = k

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        return np.full(len(tasks), self._k)

    def record(self, outcome: Outcome, shape: RoundShape) -> None:
        pass


class Heuristic:
    """transformers' schedule `heuristic`, each sequence by itself, within this engine's longest draft."""

    _FIRST = 5

    def __init__(self) -> None:
        self._lengths: Ints = np.zeros(0, dtype=np.int64)

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        if len(self._lengths) != len(tasks):
            self._lengths = np.full(len(tasks), self._FIRST)
        self._lengths = np.where(is_new, self._FIRST, self._lengths)
        return self._lengths

    def record(self, outcome: Outcome, shape: RoundShape) -> None:
        all_kept = outcome.accepted == outcome.drafted
        longer, shorter = np.minimum(self._lengths + 2, MAX_DRAFT_LEN), np.maximum(self._lengths - 1, 1)
        self._lengths = np.where(all_kept, longer, shorter)


class EmaTiers:
    """The tier rises when a moving average of accepted drafts comes within half a draft of its top, and falls when the
    one below would do. The whole batch has one length."""

    _TIERS = (1, 3, 5, 7)
    _WEIGHT, _EVERY, _SLACK = 0.2, 5, 0.5

    def __init__(self) -> None:
        self._tier = 1
        self._mean = float(self._TIERS[self._tier])
        self._rounds = 0

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        return np.full(len(tasks), self._TIERS[self._tier])

    def record(self, outcome: Outcome, shape: RoundShape) -> None:
        self._mean += self._WEIGHT * (float(outcome.accepted.mean()) - self._mean)
        self._rounds += 1
        if self._rounds % self._EVERY:
            return
        if self._tier + 1 < len(self._TIERS) and self._mean > self._TIERS[self._tier] - self._SLACK:
            self._tier += 1
        elif self._tier and self._mean < self._TIERS[self._tier - 1] - self._SLACK:
            self._tier -= 1


class Fallback:
    """Each sequence by itself: `k` drafts, none for some rounds after two rounds on end that kept none."""

    _AFTER, _FOR_ROUNDS = 2, 8

    def __init__(self, k: int) -> None:
        self._k = k
        self._refused: Ints = np.zeros(0, dtype=np.int64)
        self._left: Ints = np.zeros(0, dtype=np.int64)

    def plan(self, tasks: Ints, is_new: NDArray[np.bool_], kv_tokens: int) -> Ints:
        if len(self._left) != len(tasks):
            self._refused, self._left = np.zeros_like(tasks), np.zeros_like(tasks)
        self._refused = np.where(is_new, 0, self._refused)
        self._left = np.where(is_new, 0, self._left)
        return np.where(self._left > 0, 0, self._k)

    def record(self, outcome: Outcome, shape: RoundShape) -> None:
        drafting = outcome.drafted > 0
        self._left = np.maximum(self._left - 1, 0)
        self._refused = np.where(drafting, np.where(outcome.accepted > 0, 0, self._refused + 1), self._refused)
        falls = self._refused == self._AFTER
        self._left = np.where(falls, self._FOR_ROUNDS, self._left)
        self._refused = np.where(falls, 0, self._refused)
