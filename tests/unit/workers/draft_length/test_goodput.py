"""The draft lengths with the highest goodput."""

from __future__ import annotations

from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.cost import SEGMENTS, Cost, LinearCost, RoundShape, by_segment
from workers.draft_length.goodput import Choice, Common, Group, best_lengths, choice_of
from workers.draft_length.hazards import Outlook

HAZARDS = st.lists(st.floats(0, 1), min_size=MAX_DRAFT_LEN, max_size=MAX_DRAFT_LEN)
PRICES = st.floats(1e-4, 1.0)
BATCH = st.integers(1, 64)


def outlook(hazards: list[float]) -> Outlook:
    return Outlook(tuple(accumulate(hazards, mul)), (1.0,) * MAX_DRAFT_LEN)


def group(hazards: list[float], num_seqs: int, shortest: int = 0, longest: int = MAX_DRAFT_LEN) -> Group:
    return Group(num_seqs, "eagle3", outlook(hazards), shortest, longest)


def linear(fixed: float, row: float, step: float) -> LinearCost:
    return LinearCost(
        fixed, 0.0, (row,) * len(SEGMENTS), 0.0, 0.0, {"eagle3": step, "ngram": 0.0}, {"eagle3": 0, "ngram": 0}
    )


def k_of(hazards: list[float], num_seqs: int, cost: Cost) -> int:
    return best_lengths([group(hazards, num_seqs)], Common(0), cost).lengths[0]


@given(HAZARDS, BATCH, PRICES, PRICES, PRICES)
def test_for_one_group_it_is_the_best_of_all(
    hazards: list[float], num_seqs: int, fixed: float, row: float, step: float
) -> None:
    cost, groups = linear(fixed, row, step), [group(hazards, num_seqs)]
    best = best_lengths(groups, Common(0), cost)
    assert best.goodput == pytest.approx(max(choice_of([k], groups, Common(0), cost).goodput for k in range(9)))


@given(HAZARDS, BATCH, PRICES, st.integers(0, 8), st.integers(0, 8))
def test_it_is_within_its_bounds(hazards: list[float], num_seqs: int, row: float, one: int, other: int) -> None:
    shortest, longest = sorted((one, other))
    chosen = best_lengths([group(hazards, num_seqs, shortest, longest)], Common(0), linear(1.0, row, 0.05))
    assert shortest <= chosen.lengths[0] <= longest


@given(HAZARDS, BATCH, PRICES, PRICES, PRICES, st.integers(0, 7), st.floats(0, 1))
def test_more_acceptance_never_lowers_it(
    hazards: list[float], num_seqs: int, fixed: float, row: float, step: float, position: int, better: float
) -> None:
    cost = linear(fixed, row, step)
    more = [max(h, better) if at == position else h for at, h in enumerate(hazards)]
    before, after = k_of(hazards, num_seqs, cost), k_of(more, num_seqs, cost)
    assert after >= before or tied(more, num_seqs, cost, before, after)


@given(HAZARDS, BATCH, PRICES, PRICES, PRICES, st.integers(0, 7), PRICES)
def test_dearer_depth_never_makes_it_deeper(
    hazards: list[float], num_seqs: int, fixed: float, row: float, step: float, depth: int, dearer: float
) -> None:
    """If every depth beyond k costs more, a K of at most k stays one."""
    cost = linear(fixed, row, step)

    def dear(shape: RoundShape) -> float:
        return cost(shape) + dearer * max(0, len(shape.drafted.get("eagle3", ())) - depth)

    if k_of(hazards, num_seqs, cost) <= depth:
        assert k_of(hazards, num_seqs, dear) <= depth


@given(HAZARDS, BATCH, PRICES, PRICES, PRICES, PRICES)
def test_a_dearer_round_never_makes_it_shorter(
    hazards: list[float], num_seqs: int, fixed: float, row: float, step: float, dearer: float
) -> None:
    before = k_of(hazards, num_seqs, linear(fixed, row, step))
    after = k_of(hazards, num_seqs, linear(fixed + dearer, row, step))
    assert after >= before or tied(hazards, num_seqs, linear(fixed + dearer, row, step), before, after)


@given(HAZARDS, BATCH, PRICES, PRICES, PRICES, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(
    hazards: list[float], num_seqs: int, fixed: float, row: float, step: float, unit: float
) -> None:
    cost = linear(fixed, row, step)
    one, other = k_of(hazards, num_seqs, cost), k_of(hazards, num_seqs, lambda shape: unit * cost(shape))
    assert one == other or tied(hazards, num_seqs, cost, one, other)


def tied(hazards: list[float], num_seqs: int, cost: Cost, one: int, other: int) -> bool:
    """Two lengths that differ by rounding alone."""
    groups = [group(hazards, num_seqs)]
    return choice_of([one], groups, Common(0), cost).goodput == pytest.approx(
        choice_of([other], groups, Common(0), cost).goodput, rel=1e-12
    )


@given(st.lists(st.tuples(HAZARDS, BATCH), min_size=2, max_size=3), PRICES, st.floats(0, 0.3))
def test_a_mixed_batch_loses_next_to_nothing_against_all_combinations(
    tasks: list[tuple[list[float], int]], row: float, step: float
) -> None:
    cost = linear(1.0, row, step)
    groups = [group(hazards, n, longest=4) for hazards, n in tasks]
    every = (choice_of(lengths, groups, Common(0), cost) for lengths in product(range(5), repeat=len(groups)))
    best: Choice = max(every, key=lambda choice: choice.goodput)
    assert best_lengths(groups, Common(0), cost).goodput >= 0.97 * best.goodput


def test_each_sequence_of_a_mixed_batch_drafts_what_it_is_worth() -> None:
    easy, hopeless = group([0.95] * 8, 8), group([0.02] * 8, 8)
    lengths = best_lengths([easy, hopeless], Common(0), linear(1.0, 0.02, 0.02)).lengths
    assert lengths[0] >= 5
    assert lengths[1] == 0


def test_sequences_that_never_draft_make_drafts_cheaper_by_comparison() -> None:
    cost = linear(1.0, 0.05, 0.05)
    alone = best_lengths([group([0.6] * 8, 2)], Common(0), cost)
    in_company = best_lengths([group([0.6] * 8, 2)], Common(0, num_plain=30), cost)
    assert in_company.lengths[0] <= alone.lengths[0]  # a draft step is paid by the whole batch


def test_it_falls_as_the_batch_grows() -> None:
    lengths = [k_of([0.7] * 8, n, linear(1.0, 0.01, 0.05)) for n in (1, 8, 64, 512)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 3
    assert lengths[-1] == 0


def test_drafts_that_are_hardly_ever_offered_cost_hardly_anything() -> None:
    rare = Outlook((0.1,) * MAX_DRAFT_LEN, (0.1,) * MAX_DRAFT_LEN)
    groups = [Group(4, "ngram", rare, 0, MAX_DRAFT_LEN)]
    assert best_lengths(groups, Common(0), linear(1.0, 0.5, 0.0)).lengths == (8,)


@given(st.floats(0, 2000))
def test_segments_hold_all_rows(rows: float) -> None:
    assert sum(by_segment(rows)) == pytest.approx(rows)
