"""The spill: planned rows waiting on disk, one Arrow file per chunk of the input, until the plan's order is known.

    chunk-000012.arrow   good rows, in input order: id, task, sampling, token ids, and what is carried
    bad-000012.arrow     rejected rows; only if there are any

Good rows are mapped into memory and gathered from anywhere; only the pages touched are read.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from configs.job import Sampling
from pipeline.planning.prompt import Prompt
from pipeline.planning.row_check import CheckedRow, RejectedRow
from pipeline.schema import SAMPLING

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
GoodRow = tuple[CheckedRow, Prompt]

MAX_OPEN_CHUNKS = 4096
"""Memory maps kept open; Linux allows a process 65,530."""

FILE, CODE, MESSAGE, RAW = "draftfleet.file", "draftfleet.code", "draftfleet.message", "draftfleet.raw"
"""Columns beside those of the plan. `FILE` is an index of the source's files."""

GOOD_FIELDS = [
    pa.field("_ordinal", pa.int64()),
    pa.field("_id", pa.string()),
    pa.field("_task", pa.string()),
    pa.field(FILE, pa.int32()),
    pa.field("_source_line", pa.int64()),
    pa.field("_sampling", SAMPLING),
    pa.field("_prompt_token_ids", pa.list_(pa.int32())),
]
BAD_FIELDS = [
    pa.field("_ordinal", pa.int64()),
    pa.field("_id", pa.string()),
    pa.field("_task", pa.string()),
    pa.field(FILE, pa.int32()),
    pa.field("_source_line", pa.int64()),
    pa.field(CODE, pa.string()),
    pa.field(MESSAGE, pa.string()),
    pa.field(RAW, pa.string()),
]


def write_good(folder: Path, chunk: int, good: list[GoodRow], file: int, kept: pa.Table) -> None:
    """Spill the good rows of a chunk; `kept` is what is carried of them, in the same order."""
    columns = [
        pa.array([row.ordinal for row, _ in good], pa.int64()),
        pa.array([row.id for row, _ in good], pa.string()),
        pa.array([row.task for row, _ in good], pa.string()),
        pa.array(np.full(len(good), file, dtype=np.int32)),
        pa.array([row.line for row, _ in good], pa.int64()),
        _samplings([row.sampling for row, _ in good]),
        pa.array([prompt.token_ids for _, prompt in good], pa.list_(pa.int32())),
    ]
    _write(_good_path(folder, chunk), columns, GOOD_FIELDS, kept)


def _samplings(samplings: list[Sampling]) -> pa.Array:
    """Rows share few samplings: each is converted once."""
    places: dict[int, int] = {}
    distinct: list[Sampling] = []
    for sampling in samplings:
        if id(sampling) not in places:
            places[id(sampling)] = len(distinct)
            distinct.append(sampling)
    values = pa.array([sampling.model_dump() for sampling in distinct], SAMPLING)
    return values.take(pa.array([places[id(sampling)] for sampling in samplings], pa.int64()))


def write_bad(folder: Path, chunk: int, rejected: list[RejectedRow], file: int, kept: pa.Table) -> None:
    """Spill the rejected rows of a chunk; `kept` has a row of nulls for those that could not be read."""
    columns = [
        pa.array([row.ordinal for row in rejected], pa.int64()),
        pa.array([row.id for row in rejected], pa.string()),
        pa.array([row.task for row in rejected], pa.string()),
        pa.array(np.full(len(rejected), file, dtype=np.int32)),
        pa.array([row.line for row in rejected], pa.int64()),
        pa.array([row.code for row in rejected], pa.string()),
        pa.array([row.message for row in rejected], pa.string()),
        pa.array([row.raw for row in rejected], pa.string()),
    ]
    _write(_bad_path(folder, chunk), columns, BAD_FIELDS, kept)


def _write(path: Path, columns: list[pa.Array], fields: list[pa.Field], kept: pa.Table) -> None:
    table = pa.table([*columns, *kept.columns], schema=pa.schema([*fields, *kept.schema]))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def read_bad(folder: Path, chunk: int) -> pa.Table:
    """The rejected rows of a chunk."""
    with pa.ipc.open_file(pa.memory_map(str(_bad_path(folder, chunk)))) as file:
        return file.read_all()


def gather(folder: Path, chunk: Int32Array, row: Int32Array) -> list[tuple[pa.Table, Int64Array]]:
    """Good rows from many chunks: tables of one schema each, and the place of each of their rows in `chunk`, `row`."""
    order = np.argsort(chunk, kind="stable")
    borders = np.flatnonzero(np.diff(chunk[order])) + 1
    by_schema: dict[pa.Schema, list[tuple[pa.RecordBatch, Int64Array]]] = {}
    for members in np.split(order, borders):
        batch = _opened(str(_good_path(folder, int(chunk[members[0]]))))
        by_schema.setdefault(batch.schema, []).append((batch.take(pa.array(row[members])), members))
    return [
        (pa.Table.from_batches([taken for taken, _ in pieces]), np.concatenate([members for _, members in pieces]))
        for pieces in by_schema.values()
    ]


@lru_cache(maxsize=MAX_OPEN_CHUNKS)
def _opened(path: str) -> pa.RecordBatch:
    with pa.ipc.open_file(pa.memory_map(path)) as file:
        return file.get_batch(0)


def close_spill() -> None:
    """Let go of the files that `gather` keeps open; they hold their disk space even when they are deleted."""
    _opened.cache_clear()


def _good_path(folder: Path, chunk: int) -> Path:
    return folder / f"chunk-{chunk:06d}.arrow"


def _bad_path(folder: Path, chunk: int) -> Path:
    return folder / f"bad-{chunk:06d}.arrow"
