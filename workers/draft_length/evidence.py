"""What was seen of the drafts of a stratum: counts by draft position, which add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from workers.contract import MAX_DRAFT_LEN, SpeculationStats


def _zeros() -> list[float]:
    return [0.0] * MAX_DRAFT_LEN


@dataclass(slots=True)
class Evidence:
    """Rounds by draft position (index 0 is the first draft). Whole numbers as they were counted; discounted or scaled
    ones are fractions.

    A round that was asked for K drafts, was offered m <= K and accepted a <= m says: asked at positions below K,
    offered below m, tried below min(a + 1, m), accepted below a. So a round at K informs every shorter length, and
    says nothing of what lies behind a refusal.
    """

    asked: list[float] = field(default_factory=_zeros)
    offered: list[float] = field(default_factory=_zeros)
    """Less than asked where a drafter finds nothing to propose."""
    tried: list[float] = field(default_factory=_zeros)
    """There was a draft behind an accepted one, so its acceptance is a hazard's."""
    accepted: list[float] = field(default_factory=_zeros)

    @classmethod
    def of_stats(cls, stats: SpeculationStats) -> Evidence:
        """What a sample's, a shard's or a run's statistics over chains say."""
        at_least = list(accumulate(reversed(stats.draft_len_histogram)))[::-1]
        counts = (stats.asked_by_pos, at_least[1:], stats.tried_by_pos, stats.accepted_by_pos)
        return cls(*([float(count) for count in each] for each in counts))

    def note(self, asked: int, offered: int, accepted: int, times: int = 1, discount: float = 1.0) -> None:
        """Count `times` equal rounds. `discount` is what each observation leaves of those before it, per position."""
        tried = min(accepted + 1, offered)
        keep = discount**times
        _count(self.asked, asked, asked, times, keep)
        _count(self.offered, asked, offered, times, keep)
        _count(self.tried, tried, tried, times, keep)
        _count(self.accepted, tried, accepted, times, keep)

    def __add__(self, other: Evidence) -> Evidence:
        pairs = zip(self.counts, other.counts, strict=True)
        return Evidence(*([a + b for a, b in zip(mine, theirs, strict=True)] for mine, theirs in pairs))

    @property
    def counts(self) -> tuple[list[float], list[float], list[float], list[float]]:
        return self.asked, self.offered, self.tried, self.accepted

    def scaled(self, factor: float) -> Evidence:
        """The same rates from `factor` times as many rounds."""
        return Evidence(*([factor * value for value in counts] for counts in self.counts))

    def capped(self, most: float) -> Evidence:
        """The same rates, of `most` rounds at most per position, so that what is new soon counts as much."""
        asked = [min(1.0, most / count) if count else 1.0 for count in self.asked]
        tried = [min(1.0, most / count) if count else 1.0 for count in self.tried]
        return Evidence(
            _times(self.asked, asked),
            _times(self.offered, asked),
            _times(self.tried, tried),
            _times(self.accepted, tried),
        )

    def to_json(self) -> dict[str, list[float]]:
        return {"asked": self.asked, "offered": self.offered, "tried": self.tried, "accepted": self.accepted}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """Inverse of `to_json`; other keys are passed over. Raises KeyError or ValueError if it is not that."""
        counts = [[float(value) for value in data[name]] for name in ("asked", "offered", "tried", "accepted")]
        if any(len(each) != MAX_DRAFT_LEN for each in counts):
            raise ValueError(f"counts by draft position must be {MAX_DRAFT_LEN} each")
        return cls(*counts)


def _count(counts: list[float], seen: int, successes: int, times: int, keep: float) -> None:
    """Observe positions below `seen`; those below `successes` count."""
    for position in range(seen):
        counts[position] = counts[position] * keep + (times if position < successes else 0)


def _times(counts: list[float], factors: list[float]) -> list[float]:
    return [count * factor for count, factor in zip(counts, factors, strict=True)]
