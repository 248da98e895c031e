"""Whether a stratum still behaves as predicted: the two-sided Page-Hinkley test on how many first drafts are accepted.

What is accepted beyond the prediction, less a tolerance, is summed; when the sum has risen far above its lowest point,
the hazard has risen. The same, the other way round, tells that it has fallen. (The log-loss of the prediction would be
one sum for both, but at a hazard of one half it is the same whatever happens.)
Source: Page, "Continuous inspection schemes", Biometrika 41 (1954).
"""

from __future__ import annotations

_TOLERANCE = 0.1
"""By which a hazard may be off without an alarm: rows of one task differ, and evidence follows by itself."""
_THRESHOLD = 12.0
"""Drafts. A hazard of 0.7 that falls to 0.3 is told after 40 of them."""


class PageHinkley:
    """One stratum's test."""

    def __init__(self) -> None:
        self._above = 0.0
        self._below = 0.0
        """Each above its lowest point so far."""

    def observe(self, predicted: float, tried: int, accepted: int) -> bool:
        """First drafts of a round: so many tried, so many accepted, each predicted with this hazard. True: drift; the
        test begins anew."""
        excess, tolerance = accepted - tried * predicted, tried * _TOLERANCE
        self._above = max(0.0, self._above + excess - tolerance)
        self._below = max(0.0, self._below - excess - tolerance)
        if max(self._above, self._below) <= _THRESHOLD:
            return False
        self._above = self._below = 0.0
        return True
