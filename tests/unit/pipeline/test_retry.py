"""Failed samples that are tried again replace failures, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_commit import footer, plan_rows, sample

from pipeline.commit import commit_shard
from pipeline.committed_shard import CommittedShard, read_committed
from pipeline.fault_points import FaultPoints
from pipeline.footer import read_footer
from pipeline.layout import data_key
from pipeline.retry import replace_shard
from pipeline.schema import sample_of
from pipeline.shard_tables import error_table, output_table
from pipeline.shard_work import Sample
from pipeline.store.base import Store
from pipeline.store.local import LocalStore

KEY = data_key("code", 7)
ROWS = plan_rows(3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three rows of two samples, of which the second and the last two failed."""
    store = LocalStore(tmp_path)
    samples = [sample(row, index, "boom" if (row, index) in FAILED else None) for row in range(3) for index in range(2)]
    ok, errors = tables(samples)
    commit_shard(store, footer("a1-first", samples), ok, errors, "zstd", FaultPoints())
    return store


FAILED = [(0, 1), (2, 0), (2, 1)]


def tables(samples: list[Sample], columns: tuple[str, ...] | None = None) -> tuple[pa.Table, pa.Table]:
    return output_table(ROWS, samples, columns, token_ids=False), error_table(ROWS, samples, 1)


def retry(
    store: Store,
    old: CommittedShard,
    incarnation: str,
    still_failing: list[tuple[int, int]],
    columns: tuple[str, ...] | None = None,
) -> str:
    """Try the failed samples again, and swap the shard; returns the receipt's status."""
    samples = [sample(row, index, "again" if (row, index) in still_failing else None) for row, index in FAILED]
    ok, errors = tables(samples, columns)
    ours = footer(incarnation, samples)
    ours = replace(ours, usage=old.usage_with(ours.usage))
    ok = old.rows_with(ok, ROWS["_id"].to_pylist())
    return replace_shard(store, old, ours, ok, errors, "zstd", FaultPoints()).status


def ids(store: Store) -> list[str]:
    shard = read_committed(store, "code", 7)
    assert shard is not None
    return list(shard.ok["row_id"].to_pylist())


def test_what_stands_is_read_with_what_failed(store: Store) -> None:
    shard = read_committed(store, "code", 7)
    assert shard is not None
    assert shard.failed == {"row-0#1", "row-2#0", "row-2#1"}
    assert ids(store) == ["row-0#0", "row-1#0", "row-1#1"]
    assert read_committed(store, "code", 8) is None


def test_recovered_rows_take_their_places(store: Store) -> None:
    old = read_committed(store, "code", 7)
    assert old is not None
    assert retry(store, old, "a2-second", still_failing=[(2, 0)]) == "committed"
    assert ids(store) == ["row-0#0", "row-0#1", "row-1#0", "row-1#1", "row-2#1"]
    stands = read_footer(store, KEY)
    assert (stands.usage.samples_ok, stands.usage.samples_error, stands.usage.errors) == (5, 1, {"again": 1})
    assert stands.usage.engine_ns_error == 3 * 5 + 5  # what the first tries took stays spent
    kept = [stat.key for stat in store.list("_superseded/")]
    assert sorted(kept) == [
        "_superseded/data/code-000007-a1-first-1.parquet",
        "_superseded/errors/code-000007-a1-first-1.parquet",
    ]
    assert store.get(kept[0]) == old.body


def test_where_everything_fails_again_nothing_changes(store: Store) -> None:
    old = read_committed(store, "code", 7)
    assert old is not None
    before = {stat.key: store.get(stat.key) for stat in store.list("")}
    assert retry(store, old, "a2-second", still_failing=FAILED) == "already"
    assert {stat.key: store.get(stat.key) for stat in store.list("")} == before


def test_of_two_that_started_from_the_same_version_the_second_is_refused(store: Store) -> None:
    old = read_committed(store, "code", 7)
    assert old is not None
    assert retry(store, old, "a2-second", still_failing=[(2, 0), (2, 1)]) == "committed"
    assert retry(store, old, "a3-third", still_failing=[(0, 1)]) == "already"
    assert "row-0#1" in ids(store)  # what the first recovered
    assert read_footer(store, KEY).incarnation == "a2-second"
    assert sum("a3-third" in stat.key for stat in store.list("errors/")) == 0


def test_called_twice_it_is_one_success(store: Store) -> None:
    old = read_committed(store, "code", 7)
    assert old is not None
    assert retry(store, old, "a2-second", still_failing=[(2, 0)]) == "committed"
    assert retry(store, old, "a2-second", still_failing=[(2, 0)]) == "already"
    again = read_committed(store, "code", 7)
    assert again is not None
    assert (len(ids(store)), again.failed) == (5, {"row-2#0"})


@pytest.mark.parametrize("columns", [None, ("text",), ("finish_reason", "prompt")])
def test_recovered_rows_take_their_places_whatever_columns_are_kept(
    tmp_path: Path, columns: tuple[str, ...] | None
) -> None:
    store = LocalStore(str(tmp_path))
    samples = [sample(row, index, "boom" if (row, index) in FAILED else None) for row in range(3) for index in range(2)]
    ok, errors = tables(samples, columns)
    commit_shard(store, footer("a1-first", samples), ok, errors, "zstd", FaultPoints())
    old = read_committed(store, "code", 7)
    assert old is not None
    assert retry(store, old, "a2-second", still_failing=[(2, 0)], columns=columns) == "committed"
    assert ids(store) == ["row-0#0", "row-0#1", "row-1#0", "row-1#1", "row-2#1"]


@given(st.text(), st.integers(0, 127))
def test_a_row_id_says_which_row_and_sample_it_is(row_id: str, index: int) -> None:
    assert sample_of(f"{row_id}#{index}") == (row_id, index)
