"""From the spill to the plan's Parquet files: good rows gathered in the plan's order, rejected rows in input order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.carried import CarriedSchema, arrow_columns, json_columns
from pipeline.chunk_rows import JSON_COLUMN, JsonFormat
from pipeline.json_type import fits
from pipeline.plan_chunk import BAD_FIELDS, GOOD_FIELDS, RowProblem, bad_path, good_path
from pipeline.plan_keys import Duplicate
from pipeline.schema import ERROR, PLAN_FIELDS, error_schema, plan_schema

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

MAX_OPEN_CHUNKS = 4096
"""Memory maps kept open; Linux allows a process 65,530."""
REJECTED_BATCH = 10_000


@dataclass(frozen=True)
class WriteSpec:
    """What every writer of parts needs; picklable."""

    spill_dir: Path
    files: tuple[str, ...]
    carried: CarriedSchema
    json_format: JsonFormat | None
    """How the kept JSON text becomes columns; None if the rows are Arrow already."""

    @cached_property
    def file_names(self) -> pa.Array:
        return pa.array(self.files, pa.string())


@dataclass(frozen=True)
class Part:
    """Rows of consecutive shards. `chunk` and `row` say where each lies in the spill, in the plan's order."""

    number: int
    first_shard: int
    shard_rows: tuple[int, ...]
    chunk: Int32Array
    row: Int32Array


@lru_cache(maxsize=MAX_OPEN_CHUNKS)
def _opened(path: str) -> pa.RecordBatch:
    """A chunk of the spill, in memory only as far as it is touched."""
    with pa.ipc.open_file(pa.memory_map(path)) as file:
        return file.get_batch(0)


def part_path(spill_dir: Path, number: int) -> Path:
    return spill_dir / f"part-{number:06d}.parquet"


def write_part(spec: WriteSpec, part: Part) -> int:
    """Write a part into the spill folder, one row group per shard; returns its number."""
    schema = plan_schema(spec.carried.schema)
    rows = gather(spec, part.chunk, part.row)
    # Statistics are for searching; here they would only make the footer larger, which every shard's reader parses.
    path = str(part_path(spec.spill_dir, part.number))
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
        start = 0
        for shard, num_rows in enumerate(part.shard_rows, part.first_shard):
            writer.write_table(_plan_table(spec, rows.slice(start, num_rows), shard, schema), row_group_size=num_rows)
            start += num_rows
    return part.number


def gather(spec: WriteSpec, chunk: Int32Array, row: Int32Array) -> pa.Table:
    """Good rows of the spill in the given order. What is carried is still JSON text, or has the run's types."""
    order = np.argsort(chunk, kind="stable")
    borders = np.flatnonzero(np.diff(chunk[order])) + 1
    by_schema: dict[pa.Schema, list[tuple[pa.RecordBatch, Int64Array]]] = {}
    for members in np.split(order, borders):
        batch = _opened(str(good_path(spec.spill_dir, int(chunk[members[0]]))))
        by_schema.setdefault(batch.schema, []).append((batch.take(pa.array(row[members])), members))
    tables = [_typed(spec, pa.Table.from_batches([taken for taken, _ in pieces])) for pieces in by_schema.values()]
    places = np.concatenate([members for pieces in by_schema.values() for _, members in pieces])
    return pa.concat_tables(tables).combine_chunks().take(pa.array(np.argsort(places)))


def _typed(spec: WriteSpec, rows: pa.Table) -> pa.Table:
    """Rows of one file schema with the run's carried columns; JSON text waits until its shard is written."""
    if spec.json_format is not None:
        return rows
    columns = [*rows.columns[: len(GOOD_FIELDS)], *arrow_columns(rows, spec.carried)]
    return pa.table(columns, schema=pa.schema([*GOOD_FIELDS, *spec.carried.schema]))


def _carried(spec: WriteSpec, rows: pa.Table) -> list[pa.Array]:
    if spec.json_format is None:
        return [rows.column(each.name) for each in spec.carried.schema]
    format = spec.json_format
    objects = [format.carried_of(format.row(text)) for text in rows.column(JSON_COLUMN).cast(pa.binary()).to_pylist()]
    return json_columns(objects, spec.carried)


def _plan_table(spec: WriteSpec, rows: pa.Table, shard: int, schema: pa.Schema) -> pa.Table:
    ours = {
        "_shard": pa.array(np.full(len(rows), shard, dtype=np.int32)),
        "_source_file": spec.file_names.take(rows.column("_file")),
    }
    planned = [ours.get(each.name) for each in PLAN_FIELDS]
    columns = [
        rows.column(each.name) if made is None else made for each, made in zip(PLAN_FIELDS, planned, strict=True)
    ]
    return pa.table([*columns, *_carried(spec, rows)], schema=schema)


def write_rejected(spec: WriteSpec, path: Path, chunks: Iterable[int], duplicates: Iterable[Duplicate]) -> None:
    """All rejected rows as error rows: those of the chunks in input order, then the duplicates in input order."""
    schema = error_schema(spec.carried.schema)
    with pq.ParquetWriter(str(path), schema, compression="zstd") as writer:
        for number in chunks:
            writer.write_table(_rejected_table(spec, number, schema))
        for some in batched(duplicates, REJECTED_BATCH):
            writer.write_table(_duplicates_table(spec, some, schema))


def duplicate_problems(spec: WriteSpec, duplicates: Sequence[Duplicate]) -> list[RowProblem]:
    """Duplicates for people."""
    ids = _gathered_duplicates(spec, duplicates).column("_id").to_pylist()
    return [
        RowProblem(each.ordinal, each.file, each.line, "duplicate_id", _duplicate_message(spec, each, row_id))
        for each, row_id in zip(duplicates, ids, strict=True)
    ]


def _gathered_duplicates(spec: WriteSpec, duplicates: Sequence[Duplicate]) -> pa.Table:
    chunk = np.array([each.chunk for each in duplicates], dtype=np.int32)
    row = np.array([each.row for each in duplicates], dtype=np.int32)
    return gather(spec, chunk, row)


def _duplicate_message(spec: WriteSpec, duplicate: Duplicate, row_id: str) -> str:
    return f"id {row_id!r} stands already in {spec.files[duplicate.first_file]}, line {duplicate.first_line}"


def _rejected_table(spec: WriteSpec, number: int, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_file(pa.memory_map(str(bad_path(spec.spill_dir, number)))) as file:
        rows = file.read_all()
    errors = zip(rows.column("_code").to_pylist(), rows.column("_message").to_pylist(), strict=True)
    carried, raw = _rejected_carried(spec, rows)
    return _error_table(spec, rows, [_error(code, message) for code, message in errors], raw, carried, schema)


def _duplicates_table(spec: WriteSpec, duplicates: Sequence[Duplicate], schema: pa.Schema) -> pa.Table:
    rows = _gathered_duplicates(spec, duplicates)
    ids = rows.column("_id").to_pylist()
    errors = [
        _error("duplicate_id", _duplicate_message(spec, each, row_id))
        for each, row_id in zip(duplicates, ids, strict=True)
    ]
    return _error_table(spec, rows, errors, pa.nulls(len(rows), pa.string()), _carried(spec, rows), schema)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"stage": "plan", "code": code, "message": message, "retryable": False, "attempt": 0}


def _error_table(
    spec: WriteSpec,
    rows: pa.Table,
    errors: list[dict[str, Any]],
    raw: pa.Array,
    carried: list[pa.Array],
    schema: pa.Schema,
) -> pa.Table:
    count = len(rows)
    ours: dict[str, pa.Array] = {
        "row_id": pa.nulls(count, pa.string()),
        "id": rows.column("_id"),
        "sample_index": pa.nulls(count, pa.int32()),
        "task": rows.column("_task"),
        "error": pa.array(errors, ERROR),
        "source_file": spec.file_names.take(rows.column("_file")),
        "source_line": rows.column("_source_line"),
        "engine_ns": pa.nulls(count, pa.int64()),
        "raw": raw,
    }
    theirs = dict(zip(spec.carried.schema.names, carried, strict=True))
    return pa.table([ours[each.name] if each.name in ours else theirs[each.name] for each in schema], schema=schema)


def _rejected_carried(spec: WriteSpec, rows: pa.Table) -> tuple[list[pa.Array], pa.Array]:
    """The carried columns of rejected rows, and their raw text where it holds more than the columns could take."""
    raw = rows.column("_raw").combine_chunks()
    if spec.json_format is None:
        kept = rows.select(rows.column_names[len(BAD_FIELDS) :])
        return arrow_columns(kept, spec.carried), raw
    objects, texts = [], []
    for text, given in zip(rows.column(JSON_COLUMN).cast(pa.binary()).to_pylist(), raw.to_pylist(), strict=True):
        whole = {} if text is None else spec.json_format.carried_of(spec.json_format.row(text))
        fitting = {name: value for name, value in whole.items() if _fits(spec.carried, name, value)}
        objects.append(fitting)
        texts.append(text.decode() if len(fitting) < len(whole) else given)
    return json_columns(objects, spec.carried), pa.array(texts, pa.string())


def _fits(carried: CarriedSchema, name: str, value: Any) -> bool:
    """A rejected row may hold columns and types that no good row has."""
    if name not in carried.schema.names:
        return False
    return name in carried.as_json or fits(value, carried.schema.field(name).type)


def batched(items: Iterable[Duplicate], size: int) -> Iterator[list[Duplicate]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
