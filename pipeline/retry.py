"""A committed shard whose failed samples are tried again: what it becomes.

    _superseded/…                                  1. copies of the old data object and its error rows
    errors/<task>-<shard>-<writer>.parquet         2. what failed again, under a name of its own
    data/<task>-<shard>.parquet                    3. swapped by If-Match: readers see the old object or the new one

Only failed samples run, and a shard in which none of them comes out well is left as it is, so that a success is never
replaced by a failure.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.commit import Receipt, give_way, parquet_bytes
from pipeline.committed_shard import CommittedShard
from pipeline.fault_points import FaultPoints
from pipeline.footer import ShardFooter
from pipeline.layout import data_key, errors_key, superseded_key
from pipeline.store.base import Changed, Store


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
        return give_way(store, footer)
    key, writer = data_key(footer.task, footer.shard), f"{footer.incarnation}-{footer.shard_attempt}"
    _keep(store, old)
    failed_again = parquet_bytes(errors, compression)
    if errors.num_rows:
        footer = replace(footer, errors_key=errors_key(footer.task, footer.shard, writer))
        store.put(str(footer.errors_key), failed_again)
    body = parquet_bytes(ok, compression, footer)
    faults.reach("before_put", key)
    try:
        store.put_if_match(key, body, old.etag)
    except Changed:
        return give_way(store, footer)
    if footer.errors_key:
        # A driver that took this run over may have finished it meanwhile, and swept what no footer named then.
        store.put(footer.errors_key, failed_again)
    faults.reach("after_put", key)
    return Receipt(footer.shard, "committed", footer.usage, footer.num_rows)


def _keep(store: Store, old: CommittedShard) -> None:
    """Copies first: nothing that was committed is ever only in one place while it is being replaced."""
    writer = f"{old.footer.incarnation}-{old.footer.shard_attempt}"
    store.put(superseded_key(data_key(old.footer.task, old.footer.shard), writer), old.body)
    if old.footer.errors_key is not None:
        store.put(superseded_key(old.footer.errors_key, writer), store.get(old.footer.errors_key))
