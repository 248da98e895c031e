"""A committed shard whose failed samples are tried again: what stands there, and what it becomes.

    _superseded/…                                  1. copies of the old data object and its error rows
    errors/<task>-<shard>-<writer>.parquet         2. what failed again, under a name of its own
    data/<task>-<shard>.parquet                    3. swapped by If-Match: readers see the old object or the new one

Only failed samples run, and a shard in which none of them comes out well is left as it is, so that a success is never
replaced by a failure.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.commit import Receipt, parquet_bytes
from pipeline.fault_points import FaultPoints
from pipeline.footer import FOOTER_KEY, ShardFooter, read_footer
from pipeline.layout import data_key, errors_key, superseded_key
from pipeline.store.base import Changed, NotFound, Store
from pipeline.usage import Usage


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """A shard's objects as they were read; `etag` names that version."""

    body: bytes
    etag: str
    footer: ShardFooter
    ok: pa.Table
    failed: frozenset[str]
    """`row_id` of each failed sample."""

    def usage_with(self, retried: Usage) -> Usage:
        """The shard's counters once its failed samples have been tried again. Time they took before stays spent."""
        return replace(self.footer.usage, samples_error=0, errors={}) + retried

    def rows_with(self, recovered: pa.Table, ids: Sequence[str]) -> pa.Table:
        """Its ok rows and those that came out well now, in the order of `ids`, the shard's own, and sample index."""
        place = {row_id: number for number, row_id in enumerate(ids)}
        table = pa.concat_tables([self.ok.cast(recovered.schema), recovered])
        keys = [
            (place[row_id], index)
            for row_id, index in zip(table["id"].to_pylist(), table["sample_index"].to_pylist(), strict=True)
        ]
        return table.take(pa.array(sorted(range(len(keys)), key=keys.__getitem__), pa.int64()))


def read_committed(store: Store, task: str, shard: int) -> CommittedShard | None:
    """What stands at a shard's data key, with its failed samples; None if it is not committed yet."""
    key = data_key(task, shard)
    try:
        # The etag is read first: a swap against it fails if the object changes in between.
        etag, body = store.head(key).etag, store.get(key)
    except NotFound:
        return None
    with pq.ParquetFile(io.BytesIO(body)) as file:
        footer = ShardFooter.from_bytes(file.metadata.metadata[FOOTER_KEY.encode()])
        ok = file.read().replace_schema_metadata(None)
    if footer.errors_key is None:
        return CommittedShard(body, etag, footer, ok, frozenset())
    failed = pq.read_table(io.BytesIO(store.get(footer.errors_key)), columns=["row_id"])
    return CommittedShard(body, etag, footer, ok, frozenset(failed["row_id"].to_pylist()))


def replace_shard(
    store: Store,
    old: CommittedShard,
    footer: ShardFooter,
    ok: pa.Table,
    errors: pa.Table,
    compression: str,
    faults: FaultPoints,
) -> Receipt:
    """Swap a committed shard for one with fewer errors. Safe to call again, from anywhere.

    Raises:
        StorageError: after the store's own retries; the old object stands then.
    """
    if errors.num_rows >= len(old.failed):
        return _stands(store, footer, "already")
    key, writer = data_key(footer.task, footer.shard), f"{footer.incarnation}-{footer.shard_attempt}"
    _keep(store, old)
    failed_again = parquet_bytes(errors, compression)
    if errors.num_rows:
        footer = replace(footer, errors_key=errors_key(footer.task, footer.shard, writer))
        store.put(str(footer.errors_key), failed_again)
    body = parquet_bytes(ok, compression, footer)
    faults.reach("before_put", key)
    try:
        store.put_if_match(key, body, old.etag, {"incarnation": footer.incarnation})
    except Changed:
        return _changed(store, footer)
    if footer.errors_key:
        # A driver that took this run over may have finished it meanwhile, and swept what no footer named then.
        store.put(footer.errors_key, failed_again)
    faults.reach("after_put", key)
    return Receipt(footer.shard, "committed", footer.usage, footer.num_rows)


def _changed(store: Store, ours: ShardFooter) -> Receipt:
    """Another version stands there: ours, if an answer was lost, or that of somebody who was quicker."""
    theirs = read_footer(store, data_key(ours.task, ours.shard))
    if (theirs.incarnation, theirs.shard_attempt) == (ours.incarnation, ours.shard_attempt):
        return _stands(store, ours, "committed")
    if ours.errors_key:
        store.delete(ours.errors_key)
    return _stands(store, ours, "already")


def _stands(store: Store, ours: ShardFooter, status: Literal["committed", "already"]) -> Receipt:
    stands = read_footer(store, data_key(ours.task, ours.shard))
    return Receipt(ours.shard, status, stands.usage, stands.num_rows)


def _keep(store: Store, old: CommittedShard) -> None:
    """Copies first: nothing that was committed is ever only in one place while it is being replaced."""
    writer = f"{old.footer.incarnation}-{old.footer.shard_attempt}"
    store.put(superseded_key(data_key(old.footer.task, old.footer.shard), writer), old.body)
    if old.footer.errors_key is not None:
        store.put(superseded_key(old.footer.errors_key, writer), store.get(old.footer.errors_key))
