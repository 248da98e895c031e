"""Usage adds like numbers, and survives JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.usage import Usage
from workers.contract import MAX_DRAFT_LEN, SpeculationStats

rounds = st.lists(st.integers(0, MAX_DRAFT_LEN).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=8)


def stats_of(rounds: list[tuple[int, int]]) -> SpeculationStats:
    stats = SpeculationStats()
    for num_draft, num_accepted in rounds:
        stats.record(num_draft, num_accepted)
    return stats


usages = st.builds(
    Usage,
    samples_ok=st.integers(0, 99),
    samples_error=st.integers(0, 99),
    errors=st.dictionaries(st.sampled_from(["timeout", "bad_role"]), st.integers(1, 9)),
    output_tokens=st.integers(0, 10**12),
    engine_ns_ok=st.integers(0, 2**62),
    speculation=rounds.map(stats_of),
)


@given(usages, usages, usages)
def test_sum_is_associative_commutative_and_has_a_zero(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert (a + Usage()).to_json() == a.to_json() | {"errors": dict(sorted(a.errors.items()))}


@given(usages)
def test_json_round_trip(usage: Usage) -> None:
    assert Usage.from_json(json.loads(json.dumps(usage.to_json()))) == usage


@given(rounds)
def test_counts_by_position_agree_with_the_histograms(rounds: list[tuple[int, int]]) -> None:
    stats = stats_of(rounds)
    assert sum(stats.acceptance_histogram) == sum(stats.draft_len_histogram) == len(rounds) == stats.num_rounds
    assert sum(stats.accepted_by_pos) == stats.num_accepted_draft_tokens
    assert sum(j * count for j, count in enumerate(stats.acceptance_histogram)) == stats.num_accepted_draft_tokens
    assert sum(k * count for k, count in enumerate(stats.draft_len_histogram)) == stats.num_draft_tokens
    for position in range(MAX_DRAFT_LEN):
        assert stats.tried_by_pos[position] == sum(k > position and a >= position for k, a in rounds)
        assert stats.accepted_by_pos[position] == sum(a > position for k, a in rounds)
