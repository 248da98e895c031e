"""The cost of a round, learned from rounds: a linear fit whose prices are never negative, corrected where the machine
has been seen to differ.

Least squares on relative errors over discounted sums, so that what a round took long ago fades. Prices that the rounds
do not tell apart stay near a guess, those of rows in numbers that were never seen near their neighbours'. A round that
took far longer than expected (another process, a page fault) counts as one that took twice as long as expected. Rounds
with prefill teach the price of prefill alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.draft_length.cost import SEGMENTS, RoundShape, feature_names, features
from workers.draft_length.round_sums import RoundSums

_GUESS_FIXED, _GUESS_SEQ, _GUESS_ROW, _GUESS_KV, _GUESS_DRAFT_ROW = 1.0, 0.002, 0.01, 1e-6, 0.0005
_GUESS_STEP = {"eagle3": 0.06, "model": 0.25, "ngram": 0.002}
"""Prices in rounds of one row, before rounds were seen."""

_HALF_LIFE = 350
"""Rounds after which a round counts half."""
_DISCOUNT = 0.5 ** (1 / _HALF_LIFE)
_RIDGE = 1e-4
"""What it costs, in squared relative errors of a round, to take a price for twice its guess."""
_SMOOTH = 10 * _RIDGE
"""The same for the price of a row in one segment to be twice that in the next."""
_FLOOR = 0.02
"""Of the guess: what a round takes at least."""
OUTLIER = 2.0
"""Times as long as expected."""
_SETTLED = 12
"""Rounds after which an outlier can be told."""
_PREFILL_STEP = 0.05
_REFIT_EARLY, _REFIT_LATE, _EARLY = 4, 32, 64
"""Rounds from one solution to the next, which takes a fraction of a millisecond."""


class CostFit:
    """Learns the cost of rounds."""

    def __init__(self, drafters: Sequence[str], start: RoundSums | None = None) -> None:
        """`drafters`: those that may draft; `start`: what earlier rounds on such a machine taught."""
        self._drafters = tuple(drafters)
        self._names = feature_names(self._drafters)
        self.sums = (start or RoundSums()).over(self._names)
        self._guess: NDArray[np.float64] | None = None
        self._prices = np.zeros(len(self._names))
        self.per_prefill_token = 0.0
        """Seconds."""
        self._num_rounds = 0
        self._cells: dict[tuple[int, int], _Cell] = {}
        if self.sums.weight:
            self._begin(self.sums.xy / self.sums.weight)
            self._solve()

    @property
    def is_known(self) -> bool:
        """Any round was seen."""
        return self._guess is not None

    def observe(self, shape: RoundShape, seconds: float) -> None:
        """A round took so long."""
        if shape.num_seqs == 0 or seconds <= 0.0:
            return
        found = features(shape, self._names)
        if not self.is_known:
            self._begin(found / seconds, shape.prefill_tokens / seconds)
        expected = self._line(found)
        if shape.prefill_tokens:
            price = max(0.0, seconds - expected) / shape.prefill_tokens
            self.per_prefill_token += _PREFILL_STEP * (price - self.per_prefill_token)
            return
        cell = self._cells.setdefault(_cell(shape), _Cell())
        if self.sums.weight >= _SETTLED:
            seconds = min(seconds, OUTLIER * expected * cell.factor)
        cell.observe(found, seconds / expected)
        self.sums.discount(_DISCOUNT)
        self.sums.add(found, seconds)
        self._num_rounds += 1
        if self._num_rounds % (_REFIT_EARLY if self._num_rounds < _EARLY else _REFIT_LATE) == 0:
            self._solve()

    def __call__(self, shape: RoundShape) -> float:
        """Seconds that a round is expected to take; some round was seen."""
        seconds = self._line(features(shape, self._names))
        cell = self._cells.get(_cell(shape))
        return seconds * (cell.factor if cell else 1.0) + self.per_prefill_token * shape.prefill_tokens

    @property
    def prices(self) -> dict[str, float]:
        """Seconds per feature."""
        return dict(zip(self._names, self._prices.tolist(), strict=True))

    def _line(self, features: NDArray[np.float64]) -> float:
        """Seconds by the prices; rounds without sense may make all of those zero, and no round is free."""
        assert self._guess is not None
        return max(float(features @ self._prices), _FLOOR * float(features @ self._guess))

    def _begin(self, relative: NDArray[np.float64], prefill: float = 0.0) -> None:
        """Guess all prices from a round's features and prefill tokens per second."""
        of_drafters = (p for drafter in self._drafters for p in (_GUESS_STEP.get(drafter, 0.1), _GUESS_DRAFT_ROW))
        prices = (_GUESS_FIXED, _GUESS_SEQ, _GUESS_KV, *(_GUESS_ROW for _ in SEGMENTS), *of_drafters)
        unit = 1 / (float(relative @ np.array(prices)) + prefill * _GUESS_ROW)
        self._guess, self.per_prefill_token = unit * np.array(prices), unit * _GUESS_ROW
        self._prices = self._guess.copy()

    def _solve(self) -> None:
        """Least squares; prices that come out negative are zero, and the others solved for again."""
        assert self._guess is not None
        xx = self.sums.xx + np.diag(_RIDGE / self._guess**2)
        xy = self.sums.xy + _RIDGE / self._guess
        for left in range(3, 2 + len(SEGMENTS)):
            pull = _SMOOTH / self._guess[left] ** 2
            xx[left : left + 2, left : left + 2] += pull * np.array([[1.0, -1.0], [-1.0, 1.0]])
        free = np.arange(len(xy))
        while len(free):
            prices = np.linalg.solve(xx[np.ix_(free, free)], xy[free])
            if (prices >= 0.0).all():
                break
            free = free[prices >= 0.0]
        before = [self._line(cell.features) for cell in self._cells.values()]
        self._prices = np.zeros(len(xy))
        self._prices[free] = prices
        for cell, seconds in zip(self._cells.values(), before, strict=True):
            cell.follow(seconds / self._line(cell.features))


class _Cell:
    """How rounds of about one shape differ from the line."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self.features = np.zeros(0)
        """Of the last such round."""

    def observe(self, features: NDArray[np.float64], ratio: float) -> None:
        self._count += 1
        self.features = features
        log = math.log(min(OUTLIER, max(1 / OUTLIER, ratio)))
        self._mean += (log - self._mean) / min(self._count, 20)

    def follow(self, ratio: float) -> None:
        """The line has moved from `ratio` times what it says now; the machine has not."""
        self._mean += math.log(ratio)

    @property
    def factor(self) -> float:
        return math.exp(self._mean * self._count / (self._count + 3))


def _cell(shape: RoundShape) -> tuple[int, int]:
    """Half octaves of sequences, and drafts per sequence in halves."""
    return round(2 * math.log2(shape.num_seqs)), round(2 * (shape.num_rows / shape.num_seqs - 1))
