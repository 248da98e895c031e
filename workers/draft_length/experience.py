"""What is known of drafting before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.draft_length.evidence import Evidence
from workers.draft_length.round_sums import RoundSums
from workers.draft_length.stratum import Stratum


@dataclass(frozen=True, slots=True)
class Experience:
    """As strong as it is to count."""

    evidence: Mapping[Stratum, Evidence] = field(default_factory=dict)
    rounds: RoundSums = field(default_factory=RoundSums)
    """On such a machine."""
