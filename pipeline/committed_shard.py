"""Committed shards, read back whole: the ok rows and the error rows that their footers name."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import StorageError
from pipeline.footer import FOOTER_KEY, ShardFooter
from pipeline.layout import DATA_DIR, REJECTED_KEY, data_key, shard_number
from pipeline.ranged_file import RangedFile
from pipeline.schema import sample_of
from pipeline.store.base import NotFound, Store
from pipeline.usage import Usage

READ_AHEAD = 4
"""Shards fetched at once: a shard is megabytes, and a request to S3 is mostly waiting."""
REJECTED_BATCH = 1000
"""Rows; each may hold the text of a long line."""


@dataclass(frozen=True, slots=True)
class CommittedShard:
    """One shard of a run, as it was read; `etag` names that version of its data object, whose bytes are `body`."""

    body: bytes
    etag: str
    footer: ShardFooter
    ok: pa.Table
    """In the dataset's schema, by row, then sample."""
    errors: pa.Table | None
    """Its failed samples; None if there are none, or nobody asked."""

    @property
    def failed(self) -> frozenset[str]:
        """`row_id` of each failed sample."""
        return frozenset() if self.errors is None else frozenset(self.errors["row_id"].to_pylist())

    def usage_with(self, retried: Usage) -> Usage:
        """The shard's counters once its failed samples have been tried again. Time they took before stays spent."""
        return replace(self.footer.usage, samples_error=0, errors={}) + retried

    def rows_with(self, recovered: pa.Table, ids: Sequence[str]) -> pa.Table:
        """Its ok rows and those that came out well now, in the order of `ids`, the shard's own, and sample index."""
        place = {row_id: number for number, row_id in enumerate(ids)}
        table = pa.concat_tables([self.ok.cast(recovered.schema), recovered])
        samples = [sample_of(row_id) for row_id in table["row_id"].to_pylist()]
        keys = [(place[row_id], index) for row_id, index in samples]
        return table.take(pa.array(sorted(range(len(keys)), key=keys.__getitem__), pa.int64()))


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


def read_committed(store: Store, task: str, shard: int) -> CommittedShard | None:
    """What stands at a shard's data key, with its failed samples; None if it is not committed yet."""
    try:
        return read_shard(store, data_key(task, shard), with_errors=True)
    except NotFound:
        return None


def read_shard(store: Store, key: str, with_errors: bool) -> CommittedShard:
    """The shard at this key of `data/`.

    Raises:
        NotFound: there is none, or its error object is gone.
        StorageError: it is no shard of ours.
    """
    try:
        return _read(store, key, with_errors)
    except NotFound:
        # `resume --retry-errors` may have swapped it meanwhile, and swept the error object that the old version named.
        return _read(store, key, with_errors)


def _read(store: Store, key: str, with_errors: bool) -> CommittedShard:
    # The etag is read first: a swap against it fails if the object changes in between.
    etag, body = store.head(key).etag, store.get(key)
    with pq.ParquetFile(pa.BufferReader(body)) as parquet:
        raw = (parquet.metadata.metadata or {}).get(FOOTER_KEY.encode())
        ok = parquet.read().replace_schema_metadata(None)
    if raw is None:
        raise StorageError(f"{store.url}/{key} has no {FOOTER_KEY} footer: Draftfleet did not write it; move it away")
    footer = ShardFooter.from_bytes(raw)
    if not with_errors or footer.errors_key is None:
        return CommittedShard(body, etag, footer, ok, None)
    with pq.ParquetFile(pa.BufferReader(store.get(footer.errors_key))) as parquet:
        return CommittedShard(body, etag, footer, ok, parquet.read())


def read_rejected(store: Store) -> Iterator[pa.Table]:
    """The rows that failed while planning, in input order, some at a time."""
    try:
        file = RangedFile(store, REJECTED_KEY)
    except NotFound:
        return
    with file, pq.ParquetFile(file, pre_buffer=True) as parquet:
        for batch in parquet.iter_batches(REJECTED_BATCH):
            yield pa.Table.from_batches([batch])
