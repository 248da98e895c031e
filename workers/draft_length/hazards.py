"""What is expected of the next drafts of a stratum: a Beta posterior on the hazard of each draft position.

    hazard h_j      P(draft j is accepted | those before it were, and there is a draft j)
    supply u_j      P(there is a draft j | it was asked for); below one where a drafter finds nothing to propose
    survival S_j    h_1 … h_j · u_j: P(a round that is asked for j drafts keeps all of them)

Hazards rise with depth in real traces, so none is derived from another; the prior of a position alone leans on the one
before where nothing was ever tried. The prior is shared: its mean is what all strata of a drafter saw together, its
strength how alike they are (empirical Bayes by the method of moments), within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.evidence import Evidence

MIN_STRENGTH, MAX_STRENGTH = 10.0, 200.0
"""Observations that the shared prior counts for."""

_GUESS, _GUESS_STRENGTH = 0.6, 2.0
"""Before anything was seen: a hazard that makes drafting worth a try, soon forgotten."""

_HOPE = 2.0
"""Optimism: a hazard is looked at as if the next two attempts had succeeded."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a stratum that nothing is known of, by draft position."""

    means: tuple[float, ...]
    strengths: tuple[float, ...]

    def limited(self, strength: float) -> Prior:
        """Soon forgotten, for a stratum that has shown to be unlike itself."""
        return Prior(self.means, tuple(min(strength, each) for each in self.strengths))


IGNORANCE = Prior((_GUESS,) * MAX_DRAFT_LEN, (_GUESS_STRENGTH,) * MAX_DRAFT_LEN)


def pooled_prior(strata: Iterable[Evidence]) -> Prior:
    """The prior that strata of one drafter share."""
    seen = list(strata)
    means, strengths = list[float](), list[float]()
    before = _GUESS
    for position in range(MAX_DRAFT_LEN):
        counts = [(each.tried[position], each.accepted[position]) for each in seen if each.tried[position] > 0]
        tried, accepted = sum(n for n, _ in counts), sum(a for _, a in counts)
        mean = (accepted + _GUESS_STRENGTH * before) / (tried + _GUESS_STRENGTH)
        means.append(mean)
        strengths.append(_strength(counts, mean) if tried >= MIN_STRENGTH else _GUESS_STRENGTH)
        before = mean
    return Prior(tuple(means), tuple(strengths))


def _strength(counts: list[tuple[float, float]], mean: float) -> float:
    """Of a Beta law of hazards between strata: m(1 - m) / variance - 1, where the variance is what is left of the
    observed one without that of counting."""
    if len(counts) < 2:
        return MIN_STRENGTH
    tried = sum(n for n, _ in counts)
    # Binomial noise adds m(1 - m) / n to each squared deviation; weighted by n that is one m(1 - m) per stratum.
    excess = sum(n * (a / n - mean) ** 2 for n, a in counts) - (len(counts) - 1) * mean * (1 - mean)
    variance = excess / (tried - sum(n * n for n, _ in counts) / tried)
    if variance <= 0.0:
        return MAX_STRENGTH
    return min(MAX_STRENGTH, max(MIN_STRENGTH, mean * (1 - mean) / variance - 1))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a round may count on, by draft position."""

    survival: tuple[float, ...]
    """S_j, non-increasing."""
    offered: tuple[float, ...]
    """u_j, non-increasing: what has to be paid for."""

    @classmethod
    def of(cls, evidence: Evidence, prior: Prior, hope_at: int = MAX_DRAFT_LEN) -> Outlook:
        """Posterior means; the position `hope_at` is looked at with optimism."""
        survival, offered = list[float](), list[float]()
        kept = there = 1.0
        for position in range(MAX_DRAFT_LEN):
            still_there = min(there, (evidence.offered[position] + there) / (evidence.asked[position] + 1.0))
            kept *= still_there / there * hazard_of(evidence, prior, position, _HOPE if position == hope_at else 0.0)
            there = still_there
            survival.append(kept)
            offered.append(there)
        return cls(tuple(survival), tuple(offered))


def hazard_of(evidence: Evidence, prior: Prior, position: int, hope: float = 0.0) -> float:
    """Posterior mean, as if `hope` more drafts had been accepted."""
    strength = prior.strengths[position]
    successes = evidence.accepted[position] + strength * prior.means[position] + hope
    return successes / (evidence.tried[position] + strength + hope)
