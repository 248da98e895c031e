"""Committed shards, read back whole: the ok rows and the error rows that their footers name."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import StorageError
from pipeline.footer import FOOTER_KEY, ShardFooter
from pipeline.layout import DATA_DIR, REJECTED_KEY, shard_number
from pipeline.ranged_file import RangedFile
from pipeline.store.base import NotFound, Store

READ_AHEAD = 4
"""Shards fetched at once: a shard is megabytes, and a request to S3 is mostly waiting."""
REJECTED_BATCH = 1000
"""Rows; each may hold the text of a long line."""


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """One shard of a run."""

    footer: ShardFooter
    ok: pa.Table
    """In the dataset's schema, by row, then sample."""
    errors: pa.Table | None
    """Its failed samples; None if there are none, or nobody asked."""


def shard_keys(store: Store) -> list[str]:
    """The objects of the dataset, in key order: by task, then shard."""
    return [stat.key for stat in store.list(DATA_DIR) if shard_number(stat.key) is not None]


def read_shards(store: Store, with_errors: bool) -> Iterator[CommittedShard]:
    """Every committed shard in key order, a few read ahead.

    Raises:
        StorageError: an object is no shard of ours, or an error object is gone.
    """
    with ThreadPoolExecutor(READ_AHEAD) as pool:
        waiting: deque[Future[CommittedShard]] = deque()
        for key in shard_keys(store):
            waiting.append(pool.submit(read_shard, store, key, with_errors))
            if len(waiting) > READ_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read_shard(store: Store, key: str, with_errors: bool) -> CommittedShard:
    with pq.ParquetFile(pa.BufferReader(store.get(key))) as parquet:
        raw = (parquet.metadata.metadata or {}).get(FOOTER_KEY.encode())
        ok = parquet.read()
    if raw is None:
        raise StorageError(f"{store.url}/{key} has no {FOOTER_KEY} footer: Draftfleet did not write it; move it away")
    footer = ShardFooter.from_bytes(raw)
    if not with_errors or footer.errors_key is None:
        return CommittedShard(footer, ok, None)
    with pq.ParquetFile(pa.BufferReader(store.get(footer.errors_key))) as parquet:
        return CommittedShard(footer, ok, parquet.read())


def read_rejected(store: Store) -> Iterator[pa.Table]:
    """The rows that failed while planning, in input order, some at a time."""
    try:
        file = RangedFile(store, REJECTED_KEY)
    except NotFound:
        return
    with file, pq.ParquetFile(file, pre_buffer=True) as parquet:
        for batch in parquet.iter_batches(REJECTED_BATCH):
            yield pa.Table.from_batches([batch])
