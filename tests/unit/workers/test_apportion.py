from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.apportion import apportion

WEIGHTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=80).filter(any)


@given(st.integers(0, 10**15), WEIGHTS)
def test_shares_add_up_and_are_within_one_of_fair(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - total * weight) < sum(weights)


def test_the_largest_remainder_comes_first() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(7, [5, 1, 2]) == [4, 1, 2]
