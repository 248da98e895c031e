"""A hardware profile from rounds that were traced on it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from configs.hardware import DrafterPrices, HardwareProfile
from workers.draft_length.cost import SEGMENTS, Cost, LinearCost, RoundShape, feature_names, features
from workers.draft_length.cost_fit import OUTLIER, CostFit
from workers.draft_length.round_sums import RoundSums

Rounds = Sequence[tuple[RoundShape, float]]
"""What was in each, and its seconds."""


def fitted_profile(rounds: Rounds, drafters: Sequence[str], *, description: str, source: str) -> HardwareProfile:
    """All rounds count alike, those apart that took twice what is expected; some round has no prefill."""
    first = _fit(rounds, drafters)
    fit = _fit([each for each in rounds if each[1] <= OUTLIER * first(each[0])], drafters)
    prices = fit.prices
    return HardwareProfile(
        description=description,
        source=source,
        fixed_s=prices["fixed"],
        per_seq_s=prices["seqs"],
        per_row_s={start: prices[f"rows_from_{start}"] for start in SEGMENTS},
        per_kv_token_s=prices["kv_tokens"],
        per_prefill_token_s=fit.per_prefill_token,
        drafters={
            name: DrafterPrices(per_step_s=prices[f"{name}_steps"], per_row_s=prices[f"{name}_rows"])
            for name in drafters
        },
    )


def median_error(rounds: Rounds, profile: HardwareProfile) -> float:
    """Of what the profile says rounds without prefill take, relative to what they took."""
    cost: Cost = LinearCost.of(profile)
    return median(abs(cost(shape) / seconds - 1) for shape, seconds in rounds if not shape.prefill_tokens)


def _fit(rounds: Rounds, drafters: Sequence[str]) -> CostFit:
    names = feature_names(drafters)
    sums = RoundSums.zero(names)
    for shape, seconds in rounds:
        if not shape.prefill_tokens:
            sums.add(features(shape, names), seconds)
    fit = CostFit(drafters, sums)
    for shape, seconds in rounds:
        if shape.prefill_tokens:
            fit.observe(shape, seconds)
    return fit
