"""The Page-Hinkley test on first drafts."""

from __future__ import annotations

import random

from workers.draft_length.drift import PageHinkley


def alarm_after(predicted: float, actual: float, most: int, seed: int, per_round: int = 4) -> int | None:
    draws, test = random.Random(seed), PageHinkley()
    for drafts in range(per_round, most + 1, per_round):
        accepted = sum(draws.random() < actual for _ in range(per_round))
        if test.observe(predicted, per_round, accepted):
            return drafts
    return None


def test_a_change_is_told_soon() -> None:
    for seed in range(20):
        for predicted, actual in ((0.7, 0.3), (0.2, 0.7), (0.5, 0.9), (0.5, 0.1)):
            after = alarm_after(predicted, actual, 400, seed)
            assert after is not None
            assert after <= 100


def test_without_a_change_there_is_hardly_an_alarm() -> None:
    alarms = sum(alarm_after(h, h, 5000, seed) is not None for seed in range(20) for h in (0.2, 0.5, 0.8))
    assert alarms <= 3  # of 60 times 5,000 drafts


def test_a_prediction_that_is_a_little_off_is_no_drift() -> None:
    assert sum(alarm_after(0.7, 0.66, 3000, seed) is not None for seed in range(20)) <= 2


def test_a_sure_prediction_that_fails_is_finite() -> None:
    assert not PageHinkley().observe(1.0, 2, 0)
