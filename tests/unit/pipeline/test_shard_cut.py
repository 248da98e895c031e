"""Shards hold consecutive rows of one task and lane, and stop growing when they are full."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan import PlannedShard
from pipeline.planning.shard_cut import MAX_PART_BYTES, MAX_ROW_GROUPS, RowCost, ShardBounds, cut_shards

COSTS = st.builds(
    RowCost,
    task=st.just("t"),
    lane=st.just("greedy"),
    work=st.integers(1, 50),
    prompt_tokens=st.integers(1, 20),
    max_tokens=st.integers(1, 20),
    samples=st.integers(1, 3),
    num_bytes=st.integers(1, 100),
)
GROUPS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["greedy", "sampled"])), st.lists(COSTS, max_size=30)
)


def row(work: int = 1, num_bytes: int = 1, task: str = "t") -> RowCost:
    return RowCost(task, "greedy", work, 1, 1, 1, num_bytes)


def with_rows(shards: list[PlannedShard], rows: list[RowCost]) -> list[tuple[PlannedShard, list[RowCost]]]:
    found, start = [], 0
    for shard in shards:
        found.append((shard, rows[start : start + shard.num_rows]))
        start += shard.num_rows
    assert start == len(rows)
    return found


@given(GROUPS, st.integers(1, 100), st.integers(1, 10), st.integers(1, 300))
def test_every_row_is_in_one_shard_within_the_bounds(
    groups: dict[tuple[str, str], list[RowCost]], work: int, max_rows: int, num_bytes: int
) -> None:
    rows = [
        RowCost(*key, *(getattr(each, name) for name in RowCost.__slots__[2:]))
        for key in groups
        for each in groups[key]
    ]
    shards = list(cut_shards(rows, ShardBounds(work, max_rows, num_bytes)))
    assert [shard.shard for shard in shards] == list(range(len(shards)))
    for shard, members in with_rows(shards, rows):
        assert {(each.task, each.lane) for each in members} == {(shard.task, shard.lane)}
        assert shard.num_samples == sum(each.samples for each in members)
        assert shard.prompt_tokens == sum(each.prompt_tokens for each in members)
        assert shard.max_output_tokens == sum(each.samples * each.max_tokens for each in members)
        assert shard.work_tokens == sum(each.work for each in members)
        assert len(members) <= max_rows
        assert sum(each.work for each in members[:-1]) < work
        assert len(members) == 1 or sum(each.num_bytes for each in members) <= num_bytes
    for before, after in pairwise(with_rows(shards, rows)):
        if (before[0].task, before[0].lane) == (after[0].task, after[0].lane):
            full = (
                before[0].work_tokens >= work
                or before[0].num_rows == max_rows
                or sum(each.num_bytes for each in before[1]) + after[1][0].num_bytes > num_bytes
            )
            assert full, "a shard ended before it was full"


@given(st.lists(st.integers(1, MAX_PART_BYTES), max_size=200))
def test_parts_hold_few_row_groups_and_bounded_bytes(sizes: list[int]) -> None:
    shards = list(cut_shards([row(num_bytes=size) for size in sizes], ShardBounds(1, 1)))
    places = [(shard.part, shard.row_group) for shard in shards]
    assert places == sorted(set(places))
    for part in {shard.part for shard in shards}:
        members = [shard for shard in shards if shard.part == part]
        assert [shard.row_group for shard in members] == list(range(len(members)))
        assert len(members) <= MAX_ROW_GROUPS
        assert len(members) == 1 or sum(sizes[shard.shard] for shard in members) <= MAX_PART_BYTES


def test_no_rows_no_shards() -> None:
    assert list(cut_shards([], ShardBounds(1, 1))) == []
