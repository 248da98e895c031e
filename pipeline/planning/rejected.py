"""Rejected rows as error rows: what failed a check, and rows whose id an earlier row bears."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.planning.carried import CarriedSchema, arrow_columns, json_columns
from pipeline.planning.chunk import RowProblem
from pipeline.planning.chunk_rows import JSON_COLUMN
from pipeline.planning.json_type import fits
from pipeline.planning.keys import Duplicate
from pipeline.planning.spill import BAD_FIELDS, CODE, FILE, MESSAGE, RAW, read_bad
from pipeline.planning.write import WriteSpec, carried_columns, gathered
from pipeline.schema import ERROR, error_schema

DUPLICATES_AT_ONCE = 10_000


def write_rejected(spec: WriteSpec, path: Path, chunks: Iterable[int], duplicates: Iterable[Duplicate]) -> None:
    """All rejected rows as error rows: those of the chunks in input order, then the duplicates in input order."""
    schema = error_schema(spec.carried.schema)
    with pq.ParquetWriter(str(path), schema, compression="zstd") as writer:
        for number in chunks:
            writer.write_table(_rejected_table(spec, number, schema))
        for some in _batches(duplicates, DUPLICATES_AT_ONCE):
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
    return gathered(spec, chunk, row)


def _duplicate_message(spec: WriteSpec, duplicate: Duplicate, row_id: str) -> str:
    return f"id {row_id!r} stands already in {spec.files[duplicate.first_file]}, line {duplicate.first_line}"


def _rejected_table(spec: WriteSpec, number: int, schema: pa.Schema) -> pa.Table:
    rows = read_bad(spec.spill_dir, number)
    errors = zip(rows.column(CODE).to_pylist(), rows.column(MESSAGE).to_pylist(), strict=True)
    carried, raw = _rejected_carried(spec, rows)
    return _error_table(spec, rows, [_error(code, message) for code, message in errors], raw, carried, schema)


def _duplicates_table(spec: WriteSpec, duplicates: Sequence[Duplicate], schema: pa.Schema) -> pa.Table:
    rows = _gathered_duplicates(spec, duplicates)
    ids = rows.column("_id").to_pylist()
    errors = [
        _error("duplicate_id", _duplicate_message(spec, each, row_id))
        for each, row_id in zip(duplicates, ids, strict=True)
    ]
    return _error_table(spec, rows, errors, pa.nulls(len(rows), pa.string()), carried_columns(spec, rows), schema)


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
        "source_file": spec.file_names.take(rows.column(FILE)),
        "source_line": rows.column("_source_line"),
        "engine_ns": pa.nulls(count, pa.int64()),
        "raw": raw,
    }
    theirs = dict(zip(spec.carried.schema.names, carried, strict=True))
    return pa.table([ours[each.name] if each.name in ours else theirs[each.name] for each in schema], schema=schema)


def _rejected_carried(spec: WriteSpec, rows: pa.Table) -> tuple[list[pa.Array], pa.Array]:
    """The carried columns of rejected rows, and their raw text where it holds more than the columns could take."""
    raw = rows.column(RAW).combine_chunks()
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


def _batches(items: Iterable[Duplicate], size: int) -> Iterator[list[Duplicate]]:
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
