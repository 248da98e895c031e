"""What drafting saved, with its interval."""

from __future__ import annotations

import random

import pytest

from pipeline.saving import MIN_BLOCKS, saving_of
from workers.draft_length.comparison import Comparison, Side


def blocks(count: int, speedup: float, noise: float = 0.05, seed: int = 0) -> list[Comparison]:
    draws, found = random.Random(seed), []
    for _ in range(count):
        batch = draws.randint(1, 16)
        ns = 10_000_000 + 500_000 * batch
        plain = Side(32, 32 * batch, 32 * batch, round(32 * ns * draws.gauss(1, noise)))
        tokens = round(64 * batch * 1.8)
        drafting = Side(64, 64 * batch, tokens, round(64 * ns * 1.8 / speedup * draws.gauss(1, noise)))
        found.append(Comparison(plain, drafting, catching_up_ns=2 * ns))
    return found


@pytest.mark.parametrize("speedup", [0.8, 1.0, 1.5])
def test_the_gain_is_found_within_its_interval(speedup: float) -> None:
    saving = saving_of(blocks(200, speedup))
    assert saving is not None
    assert saving.low <= speedup <= saving.high
    assert saving.high - saving.low < 0.1
    assert saving.saved_s(100.0) == pytest.approx(100 * (speedup - 1), abs=5)


def test_more_blocks_make_it_narrower() -> None:
    few, many = saving_of(blocks(10, 1.3)), saving_of(blocks(400, 1.3))
    assert few is not None
    assert many is not None
    assert many.high - many.low < (few.high - few.low) / 3


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    found = [saving_of(blocks(30, 1.2, seed=seed)) for seed in range(60)]
    covered = sum(each.low <= 1.2 <= each.high for each in found if each is not None)
    assert covered >= 50  # 57 expected


def test_a_few_blocks_are_not_a_measurement() -> None:
    assert saving_of(blocks(MIN_BLOCKS - 1, 1.5)) is None


def test_measuring_costs_what_plain_rounds_and_catching_up_take_beyond() -> None:
    saving = saving_of(blocks(100, 2.0, noise=0.0))
    assert saving is not None
    plain_s = sum(each.plain.ns for each in blocks(100, 2.0, noise=0.0)) / 1e9
    assert saving.measuring_s == pytest.approx(plain_s / 2, rel=0.1)  # and a round each, for catching up


def test_it_is_told_in_a_line() -> None:
    text = str(saving_of(blocks(50, 1.5)))
    assert "times plain decoding in this engine" in text
    assert "50 blocks" in text
