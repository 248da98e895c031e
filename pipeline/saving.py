"""What drafting saved, from blocks of rounds without drafts beside their neighbours (see `comparison`).

It compares with this engine without drafts, not with another one. The interval is a bootstrap over blocks, since rounds
within one are alike. Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from workers.draft_length.comparison import Comparison

MIN_BLOCKS = 5
"""Fewer say nothing about how much they differ."""
_DRAWS = 2000
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Saving:
    """Rounds with drafts against rounds without, both without prefill."""

    blocks: int
    drafting_tokens_per_s: float
    """Of an engine."""
    plain_tokens_per_s: float
    low: float
    high: float
    """95 % interval of `speedup`."""
    measuring_s: float
    """What the blocks, and catching up after them, took beyond the same tokens with drafts; negative if it was less."""

    @property
    def speedup(self) -> float:
        return self.drafting_tokens_per_s / self.plain_tokens_per_s

    def saved_s(self, decoding_s: float) -> float:
        """Engine seconds saved in rounds that took so long; negative where drafting is slower."""
        return decoding_s * (self.speedup - 1)

    def __str__(self) -> str:
        rates = f"{self.drafting_tokens_per_s:,.0f} against {self.plain_tokens_per_s:,.0f} tokens/s of an engine"
        return (
            f"{self.speedup:.2f} [{self.low:.2f}, {self.high:.2f}] times plain decoding in this engine ({rates}), by "
            f"{self.blocks:,} blocks; measuring it took {self.measuring_s:.1f} s"
        )


def saving_of(comparisons: Sequence[Comparison], seed: int = 0) -> Saving | None:
    """None if too few blocks were measured."""
    if len(comparisons) < MIN_BLOCKS:
        return None
    draws = random.Random(seed)
    ratios = sorted(_speedup(draws.choices(comparisons, k=len(comparisons))) for _ in range(_DRAWS))
    drafting, plain = _rates(comparisons)
    plain_ns = sum(each.plain.ns for each in comparisons)
    same_tokens_ns = sum(each.plain.tokens for each in comparisons) / drafting
    catching_up_ns = sum(_beyond_usual(each) for each in comparisons)
    return Saving(
        blocks=len(comparisons),
        drafting_tokens_per_s=drafting * 1e9,
        plain_tokens_per_s=plain * 1e9,
        low=ratios[int(_LOW * _DRAWS)],
        high=ratios[int(_HIGH * _DRAWS)],
        measuring_s=(plain_ns - same_tokens_ns + catching_up_ns) / 1e9,
    )


def _rates(comparisons: Sequence[Comparison]) -> tuple[float, float]:
    """Tokens per nanosecond with drafts and without. A block's neighbours count by its own rounds, so that both sides
    have the same mix of batches, however many of its neighbours there were."""
    weights = [each.plain.rounds / each.drafting.rounds for each in comparisons]
    tokens = sum(weight * each.drafting.tokens for weight, each in zip(weights, comparisons, strict=True))
    ns = sum(weight * each.drafting.ns for weight, each in zip(weights, comparisons, strict=True))
    return tokens / ns, sum(each.plain.tokens for each in comparisons) / sum(each.plain.ns for each in comparisons)


def _speedup(comparisons: Sequence[Comparison]) -> float:
    drafting, plain = _rates(comparisons)
    return drafting / plain


def _beyond_usual(comparison: Comparison) -> float:
    """Nanoseconds by which the round after a block took longer than one of its neighbours."""
    usual = comparison.drafting.ns / comparison.drafting.rounds
    return max(0.0, comparison.catching_up_ns - usual) if comparison.catching_up_ns else 0.0
