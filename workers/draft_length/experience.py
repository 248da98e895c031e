"""What is known of drafting: evidence and rounds, as a controller is given them and adds to them. They add, in any
order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.draft_length.evidence import Evidence
from workers.draft_length.round_sums import RoundSums
from workers.draft_length.stratum import Stratum


@dataclass(frozen=True, slots=True)
class Experience:
    """Evidence by stratum, and rounds."""

    evidence: Mapping[Stratum, Evidence] = field(default_factory=dict)
    rounds: RoundSums = field(default_factory=RoundSums)

    def __add__(self, other: Experience) -> Experience:
        strata = sorted({*self.evidence, *other.evidence})
        nothing = Evidence()
        evidence = {each: self.evidence.get(each, nothing) + other.evidence.get(each, nothing) for each in strata}
        return Experience(evidence, self.rounds + other.rounds)

    def scaled(self, factor: float) -> Experience:
        return Experience({key: each.scaled(factor) for key, each in self.evidence.items()}, self.rounds.scaled(factor))

    def capped(self, observations: float, rounds: float) -> Experience:
        """Of so many observations per draft position, and so many rounds, at most: what is new soon outweighs it."""
        factor = min(1.0, rounds / self.rounds.weight) if self.rounds.weight else 1.0
        evidence = {key: each.capped(observations) for key, each in self.evidence.items()}
        return Experience(evidence, self.rounds.scaled(factor))

    def to_json(self) -> dict[str, Any]:
        strata = [
            {"task": key.task, "band": key.band, "drafter": key.drafter, "acceptance": key.acceptance, **each.to_json()}
            for key, each in sorted(self.evidence.items())
        ]
        return {"strata": strata, "rounds": self.rounds.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Experience:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        evidence = dict[Stratum, Evidence]()
        for each in data["strata"]:
            stratum = Stratum(each["task"], each["band"], each["drafter"], each["acceptance"])
            evidence[stratum] = evidence.get(stratum, Evidence()) + Evidence.from_json(each)
        return cls(evidence, RoundSums.from_json(data["rounds"]))
