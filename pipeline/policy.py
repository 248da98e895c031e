"""What a run taught about drafting, as increments that add: evidence by stratum and drafter, rounds by machine.

    footers of committed shards  ->  evidence        each sample counts once, because its shard is committed once
    ledgers of engines           ->  rounds          what they took, on the machine that they ran on
    several runs, decayed        ->  a policy        what the next run starts from

Adding is commutative and associative, so it does not matter which engine saw what, or when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.contract import EngineInfo
from workers.draft_length.evidence import Evidence
from workers.draft_length.experience import Experience
from workers.draft_length.round_sums import RoundSums
from workers.draft_length.stratum import Stratum

Known = tuple[Stratum, str]
"""A stratum, and the hash of the drafter that drafted: another head has other hazards."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Increments of one run, or of many."""

    evidence: Mapping[Known, Evidence] = field(default_factory=dict)
    rounds: Mapping[str, RoundSums] = field(default_factory=dict)
    """`EngineInfo.machine` -> its rounds."""

    def __add__(self, other: Policy) -> Policy:
        known = sorted({*self.evidence, *other.evidence})
        machines = sorted({*self.rounds, *other.rounds})
        nothing, no_rounds = Evidence(), RoundSums()
        return Policy(
            {each: self.evidence.get(each, nothing) + other.evidence.get(each, nothing) for each in known},
            {each: self.rounds.get(each, no_rounds) + other.rounds.get(each, no_rounds) for each in machines},
        )

    def scaled(self, factor: float) -> Policy:
        """The same rates from `factor` times as many rounds."""
        return Policy(
            {known: each.scaled(factor) for known, each in self.evidence.items()},
            {machine: each.scaled(factor) for machine, each in self.rounds.items()},
        )

    def for_engine(self, info: EngineInfo, observations: float, rounds: float) -> Experience:
        """What is known of this engine's drafters on its machine; as if from so many observations per draft position
        and so many rounds at most, so that what is new soon outweighs it."""
        evidence = {
            stratum: each.capped(observations)
            for (stratum, drafter_hash), each in self.evidence.items()
            if info.drafters.get(stratum.drafter) == drafter_hash
        }
        seen = self.rounds.get(info.machine, RoundSums())
        return Experience(evidence, seen.scaled(min(1.0, rounds / seen.weight)) if seen.weight else seen)

    def to_json(self) -> dict[str, Any]:
        return {
            "strata": [
                {**_stratum_json(stratum), "drafter_sha256": drafter_hash, **each.to_json()}
                for (stratum, drafter_hash), each in sorted(self.evidence.items())
            ],
            "rounds": {machine: each.to_json() for machine, each in sorted(self.rounds.items())},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Policy:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        found = cls(rounds={machine: RoundSums.from_json(each) for machine, each in data["rounds"].items()})
        for each in data["strata"]:
            stratum = Stratum(each["task"], each["band"], each["drafter"], each["acceptance"])
            found += cls({(stratum, each["drafter_sha256"]): Evidence.from_json(each)})
        return found


def policy_of(footers: Iterable[Mapping[str, Any]], snapshots: Iterable[Mapping[str, Any]]) -> Policy:
    """Of a run: `footers`, the `drafting` of its committed shards, and its engines' ledger snapshots."""
    found = Policy()
    for drafting in footers:
        found += Policy.from_json({"strata": drafting["strata"], "rounds": {}})
    for snapshot in snapshots:
        if "machine" in snapshot:  # one that ended before it was up is on none
            found += Policy(rounds={snapshot["machine"]: RoundSums.from_json(snapshot["round_sums"])})
    return found


def _stratum_json(stratum: Stratum) -> dict[str, str]:
    return {
        "task": stratum.task,
        "band": stratum.band,
        "drafter": stratum.drafter,
        "acceptance": stratum.acceptance,
    }
