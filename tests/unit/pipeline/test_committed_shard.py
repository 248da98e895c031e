"""Reading a run while `resume --retry-errors` swaps its shards: the old version or the new one, never a mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from test_commit import footer, plan_rows, sample

from pipeline.commit import commit_shard
from pipeline.committed_shard import read_committed, read_shard, read_shards
from pipeline.fault_points import FaultPoints
from pipeline.footer import read_footer
from pipeline.layout import data_key
from pipeline.ranged_file import RangedFile, read_ranges
from pipeline.retry import replace_shard
from pipeline.shard_tables import error_table, output_table
from pipeline.store.base import Changed, NotFound, Stat, Store
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store

KEY = data_key("code", 7)
ROWS = plan_rows(300)


@dataclass
class Interrupted:
    """A store in which something happens once, right after the key is looked at or read."""

    inner: Store
    key: str
    method: str
    happens: Callable[[], None] | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def head(self, key: str) -> Stat:
        stat = self.inner.head(key)
        self._happen("head", key)
        return stat

    def get(self, key: str) -> bytes:
        body = self.inner.get(key)
        self._happen("get", key)
        return body

    def _happen(self, method: str, key: str) -> None:
        if (method, key) == (self.method, self.key) and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A shard of which one row is ok and all others failed."""
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        store = open_store(bucket.url, bucket.storage)
    else:
        store = LocalStore(str(tmp_path))
    samples = [sample(0), *(sample(row, error="boom") for row in range(1, ROWS.num_rows))]
    ok = output_table(ROWS, samples, None, token_ids=False)
    commit_shard(store, footer("a1-first", samples), ok, error_table(ROWS, samples, 1), "none", FaultPoints())
    return store


def swap(store: Store) -> None:
    """Nearly all samples come out well: the object grows, so that old offsets lie in the middle of the new one."""
    old = read_committed(store, "code", 7)
    assert old is not None
    samples = [*(sample(row) for row in range(1, ROWS.num_rows - 1)), sample(ROWS.num_rows - 1, error="again")]
    ok = old.rows_with(output_table(ROWS, samples, None, token_ids=False), ROWS["_id"].to_pylist())
    replace_shard(store, old, footer("a2-second", samples), ok, error_table(ROWS, samples, 2), "none", FaultPoints())


def swap_and_sweep(store: Store) -> None:
    named = read_footer(store, KEY).errors_key
    assert named is not None
    swap(store)
    store.delete(named)


def test_a_footer_is_read_again_where_the_object_was_swapped_after_the_first_look(store: Store) -> None:
    during = Interrupted(store, KEY, "head", lambda: swap(store))
    assert read_footer(during, KEY).incarnation == "a2-second"  # type: ignore[arg-type]
    assert during.happens is None


def test_so_is_a_schema(store: Store) -> None:
    during = Interrupted(store, KEY, "head", lambda: swap(store))
    assert "row_id" in read_ranges(during, KEY, pq.read_schema).names  # type: ignore[arg-type]


def test_one_open_file_never_gives_bytes_of_two_versions(store: Store) -> None:
    file = RangedFile(store, KEY)
    assert file.read(4) == b"PAR1"
    swap(store)
    with pytest.raises(Changed):
        file.read(4)


def test_error_rows_that_were_swept_meanwhile_are_those_of_the_new_version(store: Store) -> None:
    during = Interrupted(store, KEY, "get", lambda: swap_and_sweep(store))
    [shard] = read_shards(during, with_errors=True)  # type: ignore[arg-type]
    assert shard.footer.incarnation == "a2-second"
    assert (shard.ok.num_rows, shard.failed) == (ROWS.num_rows - 1, {f"row-{ROWS.num_rows - 1}#0"})


def test_what_is_gone_stays_not_found(store: Store) -> None:
    named = read_footer(store, KEY).errors_key
    assert named is not None
    store.delete(named)
    with pytest.raises(NotFound, match="errors/code-000007"):
        read_shard(store, KEY, with_errors=True)
    assert read_shard(store, KEY, with_errors=False).ok.num_rows == 1
    store.delete(KEY)
    assert read_committed(store, "code", 7) is None
