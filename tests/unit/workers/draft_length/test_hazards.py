"""What is expected of drafts: posterior means by position, under a prior that strata share."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.evidence import Evidence
from workers.draft_length.hazards import (
    IGNORANCE,
    MAX_STRENGTH,
    MIN_STRENGTH,
    Outlook,
    Prior,
    hazard_of,
    pooled_prior,
)

COUNTS = st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1)), min_size=MAX_DRAFT_LEN, max_size=MAX_DRAFT_LEN)


def evidence_of(counts: list[tuple[int, float]]) -> Evidence:
    tried = [float(n) for n, _ in counts]
    return Evidence(tried, list(tried), list(tried), [float(int(n * share)) for n, share in counts])


def observed(hazards: list[float], rounds: int, k: int = MAX_DRAFT_LEN, seed: int = 0) -> Evidence:
    draws, evidence = random.Random(seed), Evidence()
    for _ in range(rounds):
        accepted = 0
        while accepted < k and draws.random() < hazards[accepted]:
            accepted += 1
        evidence.note(k, k, accepted)
    return evidence


@given(COUNTS, st.integers(-1, MAX_DRAFT_LEN))
def test_an_outlook_is_a_survival_curve(counts: list[tuple[int, float]], hope_at: int) -> None:
    outlook = Outlook.of(evidence_of(counts), IGNORANCE, hope_at)
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise((1.0, *outlook.survival)))
    assert all(0 < later <= earlier <= 1 for earlier, later in pairwise((1.0, *outlook.offered)))
    assert all(kept <= there for kept, there in zip(outlook.survival, outlook.offered, strict=True))


@given(COUNTS, st.integers(0, MAX_DRAFT_LEN - 1), st.integers(1, 50), st.integers(0, MAX_DRAFT_LEN))
def test_more_acceptance_never_makes_it_worse(
    counts: list[tuple[int, float]], position: int, more: int, hope_at: int
) -> None:
    before, after = evidence_of(counts), evidence_of(counts)
    for each in after.counts:
        each[position] += more
    gained = [
        now - then
        for now, then in zip(
            Outlook.of(after, IGNORANCE, hope_at).survival,
            Outlook.of(before, IGNORANCE, hope_at).survival,
            strict=True,
        )
    ]
    assert min(gained) >= -1e-12


def test_the_data_win_over_the_prior() -> None:
    hazards = [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    outlook = Outlook.of(observed(hazards, 20_000), IGNORANCE)
    survival = 1.0
    for position in range(4):
        survival *= hazards[position]
        assert outlook.survival[position] == pytest.approx(survival, abs=0.02)


def test_optimism_looks_one_position_ahead_and_fades_with_evidence() -> None:
    known = observed([0.7] * 8, 1000, k=2)
    plain, hopeful = Outlook.of(known, IGNORANCE), Outlook.of(known, IGNORANCE, hope_at=2)
    assert hopeful.survival[:2] == plain.survival[:2]
    assert hopeful.survival[2] > 1.2 * plain.survival[2]
    assert Outlook.of(observed([0.7] * 8, 1000), IGNORANCE, hope_at=2).survival[2] == pytest.approx(
        Outlook.of(observed([0.7] * 8, 1000), IGNORANCE).survival[2], rel=0.01
    )


def test_a_drafter_that_finds_nothing_costs_and_keeps_nothing() -> None:
    evidence = Evidence()
    evidence.note(3, 0, 0, times=900)
    evidence.note(3, 3, 3, times=100)
    outlook = Outlook.of(evidence, IGNORANCE)
    assert outlook.offered[2] == pytest.approx(0.1, abs=0.01)
    assert outlook.survival[0] == pytest.approx(0.1, abs=0.01)  # all that is offered is kept


def test_tasks_that_are_alike_make_a_strong_prior_and_unlike_ones_a_weak_one() -> None:
    alike = pooled_prior(observed([0.6] * 8, 2000, k=1, seed=seed) for seed in range(8))
    unlike = pooled_prior(
        observed([hazard] * 8, 2000, k=1, seed=seed) for seed, hazard in enumerate((0.05, 0.3, 0.6, 0.9, 0.95))
    )
    assert alike.strengths[0] > 100
    assert unlike.strengths[0] == MIN_STRENGTH
    assert alike.means[0] == pytest.approx(0.6, abs=0.02)


def test_the_strength_is_that_of_the_law_between_tasks() -> None:
    draws = random.Random(1)
    tasks = [draws.betavariate(0.6 * 40, 0.4 * 40) for _ in range(300)]
    prior = pooled_prior(observed([hazard] * 8, 400, k=1, seed=seed) for seed, hazard in enumerate(tasks))
    assert 30 < prior.strengths[0] < 55


@given(st.lists(COUNTS, max_size=4))
def test_a_prior_is_within_its_bounds(strata: list[list[tuple[int, float]]]) -> None:
    prior = pooled_prior(evidence_of(counts) for counts in strata)
    assert all(0 <= mean <= 1 for mean in prior.means)
    assert all(0 < strength <= MAX_STRENGTH for strength in prior.strengths)


def test_an_unknown_task_is_expected_to_be_like_the_others() -> None:
    prior = pooled_prior(observed([0.3] * 8, 2000, seed=seed) for seed in range(3))
    assert hazard_of(Evidence(), prior, 0) == pytest.approx(0.3, abs=0.02)


def test_where_nothing_was_tried_a_position_leans_on_the_one_before() -> None:
    prior = pooled_prior([observed([0.9] * 8, 2000, k=2)])
    assert prior.means[2] == prior.means[7] == prior.means[1]


def test_a_limited_prior_is_soon_forgotten() -> None:
    prior = Prior((0.9,) * MAX_DRAFT_LEN, (MAX_STRENGTH,) * MAX_DRAFT_LEN)
    poor = observed([0.0] * 8, 20, k=1)
    assert hazard_of(poor, prior, 0) > 0.8
    assert hazard_of(poor, prior.limited(MIN_STRENGTH), 0) < 0.35
