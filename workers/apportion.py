"""Splitting a whole number fairly."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares of `total` in proportion to `weights`, by largest remainder; they add up to `total` exactly.

    Equal remainders go to the earlier share. At least one weight must be positive.
    """
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares
