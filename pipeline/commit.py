"""How a shard becomes part of the dataset, exactly once.

    errors/<task>-<shard>-<writer>.parquet        1. error rows, under a name that only this attempt uses
                    │ named in the footer of
    data/<task>-<shard>.parquet                   2. ok rows, created if absent: this object IS the commit
                    │ found by
    LIST data/ against the plan                   3. what is done, for every driver, at any time

A retried task, an engine believed dead or a second driver runs into step 2 and finds the object there; what it made is
dropped, its error object is nobody's and is swept at the end. Nothing else decides what is done. A shard whose rows all
failed commits an object with no rows.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import StorageError
from pipeline.fault_points import FaultPoints
from pipeline.footer import FOOTER_KEY, ShardFooter, read_footer
from pipeline.layout import data_key, errors_key
from pipeline.store.base import AlreadyExists, NotFound, Store
from pipeline.usage import Usage


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the driver hears of a shard. Completeness never rests on it."""

    shard: int
    status: Literal["committed", "already"]
    """`already`: another engine's object stood there; `usage` is that object's."""
    usage: Usage
    rows: int


def commit_shard(
    store: Store, footer: ShardFooter, ok: pa.Table, errors: pa.Table, compression: str, faults: FaultPoints
) -> Receipt:
    """Commit one shard. Safe to call again, from anywhere, with the same shard.

    Raises:
        StorageError: after the store's own retries; nothing of the shard is visible then.
    """
    key = data_key(footer.task, footer.shard)
    if errors.num_rows:
        writer = f"{footer.incarnation}-{footer.shard_attempt}"
        footer = replace(footer, errors_key=errors_key(footer.task, footer.shard, writer))
        store.put(str(footer.errors_key), parquet_bytes(errors, compression))
    body = parquet_bytes(ok, compression, footer)
    faults.reach("before_put", key)
    try:
        store.put_if_absent(key, body)
    except AlreadyExists:
        return give_way(store, footer)
    faults.reach("after_put", key)
    return Receipt(footer.shard, "committed", footer.usage, footer.num_rows)


def already_committed(store: Store, task: str, shard: int) -> Receipt | None:
    """The receipt of a shard that somebody has committed; None if nobody has.

    Raises:
        StorageError: after the store's own retries.
    """
    try:
        stands = read_footer(store, data_key(task, shard))
    except NotFound:
        return None
    return Receipt(shard, "already", stands.usage, stands.num_rows)


def give_way(store: Store, ours: ShardFooter) -> Receipt:
    """Another version of our shard stands and stays: drop our error object; the receipt is of what stands.

    Raises:
        StorageError: after the store's own retries.
    """
    theirs = read_footer(store, data_key(ours.task, ours.shard))
    if ours.errors_key and ours.errors_key != theirs.errors_key:
        with contextlib.suppress(StorageError):  # the sweep at the end of the run takes it, too
            store.delete(ours.errors_key)
    return Receipt(ours.shard, "already", theirs.usage, theirs.num_rows)


def parquet_bytes(table: pa.Table, compression: str, footer: ShardFooter | None = None) -> bytes:
    """The whole Parquet file in memory; a shard is megabytes."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, compression=compression) as writer:
        writer.write_table(table)
        if footer is not None:
            writer.add_key_value_metadata({FOOTER_KEY: footer.to_bytes()})
    return buffer.getvalue()
