"""Whether a run fails so often that going on wastes money."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from configs.errors import TooManyErrors

ENOUGH = 200
"""Samples before the rate is judged."""
DEVIATIONS = 3.0
"""Above the limit by so much that chance would do it once in a thousand runs: a run whose true rate is at the limit
must not be stopped because its first rows were unlucky."""


def surely_above(errors: int, samples: int, max_rate: float) -> bool:
    """Whether the true error rate is above `max_rate` (Wilson's score bound, JASA 22, 1927), judged from ENOUGH on."""
    if samples < ENOUGH or errors / samples <= max_rate:  # the bound is no higher than the rate, but rounding may be
        return False
    rate, square = errors / samples, DEVIATIONS**2
    centre = rate + square / (2 * samples)
    spread = DEVIATIONS * math.sqrt(rate * (1 - rate) / samples + square / (4 * samples**2))
    return (centre - spread) / (1 + square / samples) > max_rate


def refuse_hopeless(rejected: Mapping[str, int], num_samples: int, max_rate: float) -> None:
    """The rows rejected while planning, by code, may alone be more than the run may have errors.

    Raises:
        TooManyErrors: even if all of `num_samples` came out well.
    """
    errors, samples = sum(rejected.values()), sum(rejected.values()) + num_samples
    if errors > max_rate * samples:
        codes = ", ".join(f"{code} {count:,}" for code, count in rejected.items())
        raise TooManyErrors(
            f"{errors:,} of {samples:,} samples cannot even be started ({codes}), more than limits.max_error_rate: "
            f"{max_rate:g} allows; no engine was started\n"
            "mend these rows and plan anew (--new-run), or do without them: "
            f"--set limits.max_error_rate={math.ceil(100 * errors / samples) / 100:g}"
        )


def refuse_together(counts: Sequence[Mapping[str, Any]], max_rate: float) -> None:
    """Judge what several engines have counted, each as `ErrorRate.to_json`, as if one had.

    Raises:
        TooManyErrors: the rate is surely above the limit.
    """
    ErrorRate(max_rate).add(
        samples=sum(count["samples"] for count in counts),
        errors=sum((Counter(count["errors"]) for count in counts), Counter()),
        example=next((count["example"] for count in counts if count["example"]), ""),
    )


@dataclass(slots=True)
class ErrorRate:
    """Counts samples as they end; one thread at a time."""

    max_rate: float
    samples: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    example: str = ""
    """What the first error said."""

    def to_json(self) -> dict[str, Any]:
        """What was counted so far."""
        return {"samples": self.samples, "errors": dict(self.errors), "example": self.example}

    def add(self, *, samples: int, errors: Mapping[str, int], example: str = "") -> None:
        """Count so many samples, errors among them by code.

        Raises:
            TooManyErrors: the rate is surely above the limit.
        """
        self.samples += samples
        self.errors.update(errors)
        self.example = self.example or example
        if surely_above(self.errors.total(), self.samples, self.max_rate):
            raise TooManyErrors(self._told())

    def _told(self) -> str:
        codes = ", ".join(f"{code} {count:,}" for code, count in self.errors.most_common(3))
        return (
            f"{self.errors.total():,} of the first {self.samples:,} samples failed ({codes}), more than "
            f"limits.max_error_rate: {self.max_rate:g} allows; no more were started\n"
            + (f"for example {self.example}\n" if self.example else "")
            + "committed shards stay; mend the cause, or raise the limit, and `draftfleet resume`"
        )
