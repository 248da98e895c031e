"""Which samples are expected to be drafted alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from configs.job import Acceptance, Sampling

Band = Literal["greedy", "cool", "hot"]

_HOT = 0.7
"""Above this temperature a target's choices are its own rather than the likeliest."""


@dataclass(frozen=True, slots=True, order=True)
class Stratum:
    """Samples whose drafts are accepted with the same hazards, as far as anybody knows."""

    task: str
    band: Band
    drafter: str
    acceptance: Acceptance = "match"
    """The rule of verification: each keeps another share of the same drafts."""


def band_of(sampling: Sampling) -> Band:
    """By temperature: 0, at most 0.7, above."""
    if sampling.is_greedy:
        return "greedy"
    return "cool" if sampling.temperature <= _HOT else "hot"
