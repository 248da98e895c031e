"""When a run is given up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import TooManyErrors
from pipeline.error_rate import ENOUGH, ErrorRate, refuse_hopeless, refuse_together, surely_above


def test_a_run_in_which_everything_fails_ends_at_once_when_it_may() -> None:
    rate = ErrorRate(0.01)
    for number in range(1, ENOUGH):
        rate.add(samples=1, errors={"timeout": 1}, example=f"row-{number}: too slow")
    with pytest.raises(TooManyErrors, match=r"200 of the first 200 samples failed \(timeout 200\)") as raised:
        rate.add(samples=1, errors={"timeout": 1})
    assert "for example row-1: too slow" in str(raised.value)


def test_a_true_rate_at_the_limit_is_hardly_ever_stopped() -> None:
    draw = random.Random(0)
    stopped = 0
    for _ in range(300):
        errors = 0
        for samples in range(1, 1001):
            errors += draw.random() < 0.01
            if samples >= ENOUGH and surely_above(errors, samples, 0.01):
                stopped += 1
                break
    assert stopped <= 12  # looked at 800 times each, so more often than one look in a thousand


def test_a_rate_of_five_times_the_limit_is_stopped_within_a_thousand() -> None:
    assert surely_above(50, 1000, 0.01)
    assert not surely_above(12, 1000, 0.01)


@given(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1))
def test_it_is_never_stopped_below_the_limit_and_more_errors_never_save_it(
    errors: int, others: int, max_rate: float
) -> None:
    samples = errors + others
    if samples and errors / samples <= max_rate:
        assert not surely_above(errors, samples, max_rate)
    if surely_above(errors, samples, max_rate) and others:
        assert surely_above(errors + 1, samples, max_rate)


def test_a_run_without_errors_goes_on_where_none_is_allowed() -> None:
    assert not any(surely_above(0, samples, 0.0) for samples in range(20_000))


def test_no_errors_allowed_means_the_first_counts() -> None:
    assert surely_above(1, ENOUGH, 0.0)


def test_what_planning_rejected_may_be_too_much_alone() -> None:
    refuse_hopeless({"bad_role": 1}, 99, 0.01)
    with pytest.raises(
        TooManyErrors, match=r"3 of 100 samples cannot even be started \(bad_role 2, no_id 1\)"
    ) as raised:
        refuse_hopeless({"bad_role": 2, "no_id": 1}, 97, 0.01)
    assert "limits.max_error_rate=0.03" in str(raised.value)
    refuse_hopeless({"bad_role": 2, "no_id": 1}, 97, 0.03)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=6), st.floats(0, 1))
def test_engines_are_judged_as_if_one_had_counted_everything(lives: list[tuple[int, int]], max_rate: float) -> None:
    counts = []
    for errors, others in lives:
        life = ErrorRate(1.0)
        life.add(samples=errors + others, errors={"timeout": errors}, example="row-1: too slow" if errors else "")
        counts.append(life.to_json())
    errors, samples = sum(errors for errors, _ in lives), sum(map(sum, lives))
    if not surely_above(errors, samples, max_rate):
        refuse_together(counts, max_rate)
        return
    with pytest.raises(TooManyErrors, match=f"{errors:,} of the first {samples:,} samples failed") as raised:
        refuse_together(counts, max_rate)
    assert "for example row-1: too slow" in str(raised.value)
