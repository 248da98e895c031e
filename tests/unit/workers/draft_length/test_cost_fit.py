"""The cost of rounds, learned from rounds."""

from __future__ import annotations

import random

import pytest

from workers.draft_length.cost import SEGMENTS, Cost, LinearCost, RoundShape, feature_names, features
from workers.draft_length.cost_fit import CostFit
from workers.draft_length.round_sums import RoundSums

ROOFLINE = LinearCost(
    fixed=7e-3,
    per_seq=5e-5,
    per_row=tuple(1e-5 if start < 32 else 2e-4 for start in SEGMENTS),
    per_kv_token=4e-8,
    per_prefill_token=3e-4,
    per_draft_step={"eagle3": 6e-4, "ngram": 1e-5},
    per_draft_row={"eagle3": 2e-5, "ngram": 0.0},
)
"""Rows are nearly free up to 32, as where weights are what is waited for."""


def shape(num_seqs: int, k: int, kv_tokens: int = 0, prefill: int = 0) -> RoundShape:
    return RoundShape(num_seqs, kv_tokens, prefill, {"eagle3": [float(num_seqs)] * k} if k else {})


def learned(
    cost: Cost, shapes: list[RoundShape], rounds: int, noise: float = 0.03, start: RoundSums | None = None
) -> CostFit:
    draws, fit = random.Random(0), CostFit(["eagle3", "ngram"], start)
    for _ in range(rounds):
        each = draws.choice(shapes)
        fit.observe(each, cost(each) * draws.gauss(1.0, noise))
    return fit


MANY = [shape(n, k, 300 * n) for n in (1, 2, 5, 9, 16, 33, 64) for k in (0, 1, 2, 4)]


def test_it_knows_what_it_has_seen() -> None:
    fit = learned(ROOFLINE, MANY, 1500)
    for each in MANY:
        assert fit(each) == pytest.approx(ROOFLINE(each), rel=0.04)


def test_it_prices_loads_and_depths_that_it_has_not_seen() -> None:
    fit = learned(ROOFLINE, MANY, 1500)
    for each in (shape(3, 3, 900), shape(24, 2, 8000), shape(48, 6, 12_000), shape(1, 8, 500)):
        assert fit(each) == pytest.approx(ROOFLINE(each), rel=0.12)


def test_deeper_is_never_cheaper() -> None:
    """Even on data without any sense."""
    draws = random.Random(3)
    fit = CostFit(["eagle3"])
    for _ in range(300):
        fit.observe(shape(draws.randint(1, 40), draws.randint(0, 6)), draws.uniform(0.001, 0.1))
    prices = fit.prices
    assert min(prices.values()) >= 0.0


def test_the_line_is_corrected_where_the_machine_differs_from_it() -> None:
    def stepped(each: RoundShape) -> float:
        return ROOFLINE(each) * (1.3 if each.num_seqs == 16 and each.drafted else 1.0)

    fit = learned(stepped, MANY, 3000)
    for k in (1, 2):
        assert fit(shape(16, k, 4800)) == pytest.approx(stepped(shape(16, k, 4800)), rel=0.05)


def test_an_outlier_changes_little() -> None:
    fit = learned(ROOFLINE, [shape(4, 2), shape(4, 0)], 200)
    before = fit(shape(4, 2))
    fit.observe(shape(4, 2), 100 * before)
    assert fit(shape(4, 2)) == pytest.approx(before, rel=0.1)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    fit = learned(ROOFLINE, [shape(4, 2), shape(4, 0)], 300)
    for _ in range(700):
        for each in (shape(4, 2), shape(4, 0)):
            fit.observe(each, 1.5 * ROOFLINE(each))
    assert fit(shape(4, 2)) == pytest.approx(1.5 * ROOFLINE(shape(4, 2)), rel=0.05)


def test_prefill_is_priced_apart() -> None:
    fit = learned(ROOFLINE, MANY, 500)
    before = fit(shape(8, 2))
    for _ in range(200):
        fit.observe(shape(8, 2, prefill=100), ROOFLINE(shape(8, 2, prefill=100)))
    assert fit(shape(8, 2)) == before
    assert fit(shape(8, 2, prefill=50)) - before == pytest.approx(50 * ROOFLINE.per_prefill_token, rel=0.1)


def test_one_round_is_enough_to_begin() -> None:
    fit = CostFit(["eagle3"])
    assert not fit.is_known
    fit.observe(shape(1, 0), 0.01)
    assert fit.is_known
    assert 0.01 < fit(shape(1, 4)) < 0.02


def test_sums_of_two_engines_start_a_third() -> None:
    sums = [RoundSums.zero(feature_names(["eagle3", "ngram"])) for _ in range(2)]
    draws = random.Random(5)
    for each in MANY * 8:
        sums[draws.randint(0, 1)].add(features(each, feature_names(["eagle3", "ngram"])), ROOFLINE(each))
    both = RoundSums.from_json((sums[0] + sums[1]).to_json())
    fit = CostFit(["ngram", "eagle3", "model"], both)  # in another order, with a drafter more
    for each in MANY:
        assert fit(each) == pytest.approx(ROOFLINE(each), rel=0.04)


def test_sums_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="over 2 features"):
        RoundSums.from_json({"names": ["a", "b"], "xx": [[1.0]], "xy": [1.0], "weight": 1})
