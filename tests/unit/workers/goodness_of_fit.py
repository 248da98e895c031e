"""G-test: how likely is a sample at least as far from its law as this one?"""

from __future__ import annotations

import torch
from torch import Tensor


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Survival of the likelihood-ratio statistic (https://en.wikipedia.org/wiki/G-test). Cells expected less than five
    times are pooled; a count where the probability is 0 makes it 0."""
    counts, probabilities = counts.double(), probabilities.double()
    if counts[probabilities == 0].sum() > 0:
        return 0.0
    expected = probabilities / probabilities.sum() * counts.sum()
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(counts) == 1:
        return 1.0
    statistic = 2 * torch.special.xlogy(counts, counts / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
