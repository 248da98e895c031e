"""From the spill to the plan's parts: good rows gathered in the plan's order, one row group per shard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.planning.carried import CarriedSchema, arrow_columns, json_columns
from pipeline.planning.chunk_rows import JSON_COLUMN, JsonFormat
from pipeline.planning.spill import FILE, GOOD_FIELDS, Int32Array, gather
from pipeline.schema import PLAN_FIELDS, plan_schema


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


def part_path(spill_dir: Path, number: int) -> Path:
    return spill_dir / f"part-{number:06d}.parquet"


def write_part(spec: WriteSpec, part: Part) -> int:
    """Write a part into the spill folder, one row group per shard; returns its number."""
    schema = plan_schema(spec.carried.schema)
    rows = gathered(spec, part.chunk, part.row)
    # Statistics are for searching; here they would only make the footer larger, which every shard's reader parses.
    path = str(part_path(spec.spill_dir, part.number))
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
        start = 0
        for shard, num_rows in enumerate(part.shard_rows, part.first_shard):
            writer.write_table(_plan_table(spec, rows.slice(start, num_rows), shard, schema), row_group_size=num_rows)
            start += num_rows
    return part.number


def gathered(spec: WriteSpec, chunk: Int32Array, row: Int32Array) -> pa.Table:
    """Good rows of the spill in the given order. What is carried has the run's types, or is JSON text still."""
    pieces = gather(spec.spill_dir, chunk, row)
    places = np.concatenate([members for _, members in pieces])
    rows = pa.concat_tables([_typed(spec, table) for table, _ in pieces]).combine_chunks()
    return rows.take(pa.array(np.argsort(places)))


def _typed(spec: WriteSpec, rows: pa.Table) -> pa.Table:
    """Rows of one file schema with the run's carried columns; JSON text waits until its shard is written."""
    if spec.json_format is not None:
        return rows
    columns = [*rows.columns[: len(GOOD_FIELDS)], *arrow_columns(rows, spec.carried)]
    return pa.table(columns, schema=pa.schema([*GOOD_FIELDS, *spec.carried.schema]))


def carried_columns(spec: WriteSpec, rows: pa.Table) -> list[pa.Array]:
    """The carried columns of gathered rows, in the run's types."""
    if spec.json_format is None:
        return [rows.column(each.name) for each in spec.carried.schema]
    format = spec.json_format
    objects = [format.carried_of(format.row(text)) for text in rows.column(JSON_COLUMN).cast(pa.binary()).to_pylist()]
    return json_columns(objects, spec.carried)


def _plan_table(spec: WriteSpec, rows: pa.Table, shard: int, schema: pa.Schema) -> pa.Table:
    ours = {
        "_shard": pa.array(np.full(len(rows), shard, dtype=np.int32)),
        "_source_file": spec.file_names.take(rows.column(FILE)),
    }
    planned = [ours.get(each.name) for each in PLAN_FIELDS]
    columns = [
        rows.column(each.name) if made is None else made for each, made in zip(PLAN_FIELDS, planned, strict=True)
    ]
    return pa.table([*columns, *carried_columns(spec, rows)], schema=schema)
