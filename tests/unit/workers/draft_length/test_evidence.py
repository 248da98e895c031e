"""Counts of drafts by position: they add, and they are the same as those of a row's statistics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract import MAX_DRAFT_LEN, SpeculationStats
from workers.draft_length.evidence import Evidence

ROUNDS = st.lists(
    st.integers(0, MAX_DRAFT_LEN).flatmap(
        lambda asked: st.integers(0, asked).flatmap(
            lambda offered: st.tuples(st.just(asked), st.just(offered), st.integers(0, offered))
        )
    ),
    max_size=30,
)


def noted(rounds: list[tuple[int, int, int]], discount: float = 1.0) -> Evidence:
    evidence = Evidence()
    for asked, offered, accepted in rounds:
        evidence.note(asked, offered, accepted, discount=discount)
    return evidence


@given(ROUNDS)
def test_it_is_what_a_rows_statistics_say(rounds: list[tuple[int, int, int]]) -> None:
    stats = SpeculationStats()
    for asked, offered, accepted in rounds:
        stats.record(offered, accepted, asked)
    assert noted(rounds) == Evidence.of_stats(stats)


@given(ROUNDS, ROUNDS)
def test_the_evidence_of_all_rounds_is_the_sum_in_any_order(
    some: list[tuple[int, int, int]], others: list[tuple[int, int, int]]
) -> None:
    assert noted(some + others) == noted(some) + noted(others) == noted(others) + noted(some)


@given(ROUNDS)
def test_equal_rounds_may_be_noted_together(rounds: list[tuple[int, int, int]]) -> None:
    together = Evidence()
    for kind in sorted(set(rounds)):
        together.note(*kind, times=rounds.count(kind))
    assert together == noted(rounds)


@given(ROUNDS)
def test_what_was_accepted_had_been_tried_offered_and_asked_for(rounds: list[tuple[int, int, int]]) -> None:
    for asked, offered, tried, accepted in zip(*noted(rounds).counts, strict=True):
        assert accepted <= tried <= offered <= asked
    for asked, offered, tried, accepted in zip(*noted(rounds, discount=0.9).counts, strict=True):
        assert accepted <= tried + 1e-9
        assert offered <= asked + 1e-9


def test_discounting_forgets_position_by_position() -> None:
    evidence = noted([(4, 4, 4)] * 50 + [(1, 1, 0)] * 500, discount=0.98)
    assert evidence.accepted[0] < 0.01
    assert evidence.accepted[3] > 30  # nothing was seen there since


@given(ROUNDS, st.floats(0.5, 20))
def test_a_cap_leaves_the_rates(rounds: list[tuple[int, int, int]], most: float) -> None:
    evidence = noted(rounds)
    capped = evidence.capped(most)
    assert max(capped.asked + capped.tried) <= most + 1e-9
    for position in range(MAX_DRAFT_LEN):
        if evidence.tried[position]:
            rate = evidence.accepted[position] / evidence.tried[position]
            assert capped.accepted[position] == pytest.approx(rate * capped.tried[position])
        if evidence.asked[position]:
            rate = evidence.offered[position] / evidence.asked[position]
            assert capped.offered[position] == pytest.approx(rate * capped.asked[position])


@given(ROUNDS)
def test_json_gives_it_back(rounds: list[tuple[int, int, int]]) -> None:
    assert Evidence.from_json(noted(rounds, discount=0.9).to_json()) == noted(rounds, discount=0.9)


def test_counts_of_another_length_are_refused() -> None:
    data = Evidence().to_json() | {"tried": [0.0]}
    with pytest.raises(ValueError, match="8 each"):
        Evidence.from_json(data)
