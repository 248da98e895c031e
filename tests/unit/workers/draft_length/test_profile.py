"""A profile fitted to rounds of a known machine prices other rounds as that machine does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from configs.hardware import load_hardware
from workers.draft_length.cost import SEGMENTS, LinearCost, RoundShape
from workers.draft_length.profile import fitted_profile, median_error

PER_ROW = (1e-4,) * 4 + (3e-4,) * (len(SEGMENTS) - 4)
PER_STEP, PER_DRAFT = {"eagle3": 5e-4, "ngram": 0.0}, {"eagle3": 2e-5, "ngram": 0.0}
MACHINE = LinearCost(8e-3, 1e-4, PER_ROW, 1e-7, 5e-5, PER_STEP, PER_DRAFT)


def rounds(count: int, seed: int, noise: float = 0.03) -> list[tuple[RoundShape, float]]:
    draws, found = random.Random(seed), list[tuple[RoundShape, float]]()
    for _ in range(count):
        num_seqs, k = draws.randint(1, 32), draws.randint(0, 6)
        name = draws.choice(["eagle3", "ngram"])
        prefill = 64 if draws.random() < 0.1 else 0
        shape = RoundShape(num_seqs, 300 * num_seqs, prefill, {name: [float(num_seqs)] * k} if k else {})
        found.append((shape, MACHINE(shape) * draws.gauss(1.0, noise)))
    return found


def test_a_fitted_profile_prices_what_it_has_not_seen() -> None:
    profile = fitted_profile(rounds(3000, 0), ["eagle3", "ngram"], description="mine", source="traced")
    cost = LinearCost.of(profile)
    for shape, _ in rounds(200, 1):
        assert cost(shape) == pytest.approx(MACHINE(shape), rel=0.05)
    assert median_error(rounds(500, 2), profile) < 0.04


def test_a_stutter_now_and_then_does_not_raise_the_prices() -> None:
    slow = [(shape, seconds * (50 if at % 25 == 0 else 1)) for at, (shape, seconds) in enumerate(rounds(3000, 3))]
    cost = LinearCost.of(fitted_profile(slow, ["eagle3", "ngram"], description="mine", source="traced"))
    for shape, _ in rounds(200, 4):
        assert cost(shape) == pytest.approx(MACHINE(shape), rel=0.06)


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    profile = fitted_profile(rounds(500, 5), ["eagle3"], description="mine", source="traced")
    file = tmp_path / "mine.yaml"
    file.write_text(profile.to_yaml())
    assert load_hardware(str(file)) == profile
