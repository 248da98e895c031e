"""The rows of a chunk, whatever its format: what the check reads of each, and what of them is kept for the output.

JSON rows are kept as their text, and typed only when the shard is written, since the types are known only then.
Columnar rows stay Arrow from the file to the shard; only the columns that a check or a template reads become Python
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from configs.errors import RowError
from pipeline.carried import conform, normalised
from pipeline.row_check import RejectedRow
from pipeline.source import openai_batch
from pipeline.source.chunk import LineChunk, TableChunk, is_blank
from pipeline.source.column_map import ColumnMap
from pipeline.source.jsonl import parse_object

MAX_RAW_CHARS = 65_536
JSON_COLUMN = "_json"


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A readable row: `values` under their new names, for the check."""

    position: int
    ordinal: int
    line: int
    values: Mapping[str, Any]


class ChunkRows(Protocol):
    """A chunk's rows, read."""

    @property
    def readable(self) -> Sequence[ReadRow]: ...

    @property
    def rejected(self) -> Sequence[RejectedRow]: ...

    @property
    def column_names(self) -> Sequence[str]:
        """Under their new names, in order of appearance."""
        ...

    def kept(self, positions: Sequence[int | None]) -> pa.Table:
        """What the spill keeps of these rows; a null row for None."""
        ...

    def num_bytes(self, positions: Sequence[int]) -> Sequence[int]:
        """About how large each of these rows is in memory."""
        ...

    def raw(self, position: int) -> str | None:
        """The row's text in the input, if it has one."""
        ...


@dataclass(frozen=True)
class JsonFormat:
    """How a line becomes a row. `batch_model` is the job's model if the lines are an OpenAI batch."""

    columns: ColumnMap
    batch_model: str | None = None

    def row(self, text: bytes) -> dict[str, Any]:
        """The line's columns under their new names.

        Raises:
            RowError: the line is no row.
        """
        value = parse_object(text)
        if self.batch_model is not None:
            value = openai_batch.batch_row(value, self.batch_model)
        return self.columns.renamed(value)

    def carried_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row that go to the output."""
        dropped = self.columns.ours | (openai_batch.NOT_CARRIED if self.batch_model is not None else frozenset())
        return {name: value for name, value in row.items() if name not in dropped}


class JsonRows:
    """Rows of a text chunk. Lines that are no rows are rejected with their text."""

    def __init__(self, chunk: LineChunk, format: JsonFormat) -> None:
        self.readable: list[ReadRow] = []
        self.rejected: list[RejectedRow] = []
        self._lines: list[bytes] = []
        self._names: dict[str, None] = {}
        for ordinal, line, text in _numbered(chunk):
            try:
                row = format.row(text)
            except RowError as error:
                self.rejected.append(RejectedRow(None, ordinal, line, error.code, error.message, raw=_shown(text)))
                continue
            if not row.keys() <= self._names.keys():
                self._names |= dict.fromkeys(row)
            self.readable.append(ReadRow(len(self._lines), ordinal, line, row))
            self._lines.append(text)

    @property
    def column_names(self) -> Sequence[str]:
        return list(self._names)

    def kept(self, positions: Sequence[int | None]) -> pa.Table:
        texts = [None if position is None else self._lines[position] for position in positions]
        return pa.table({JSON_COLUMN: pa.array(texts, pa.binary()).cast(pa.string())})

    def num_bytes(self, positions: Sequence[int]) -> Sequence[int]:
        return [len(self._lines[position]) for position in positions]

    def raw(self, position: int) -> str | None:
        return _shown(self._lines[position])


def _numbered(chunk: LineChunk) -> Iterator[tuple[int, int, bytes]]:
    ordinal = chunk.first_ordinal
    for line, text in enumerate(chunk.data.split(b"\n"), chunk.first_line):
        if not is_blank(text):
            yield ordinal, line, text.rstrip(b"\r")
            ordinal += 1


def _shown(text: bytes) -> str:
    return text[:MAX_RAW_CHARS].decode(errors="replace")


class TableRows:
    """Rows of a columnar chunk. `read` are the columns that a check may look at, under their new names."""

    def __init__(self, chunk: TableChunk, columns: ColumnMap, read: frozenset[str]) -> None:
        with pa.ipc.open_stream(chunk.ipc) as stream:
            table = stream.read_all()
        names = columns.new_names(table.column_names)
        self._table = table.rename_columns(names)
        self.column_names = names
        self._ours = columns.ours
        self.rejected = [
            RejectedRow(None, bad.ordinal, bad.line, bad.code, bad.message, raw=bad.raw) for bad in chunk.bad
        ]
        wanted = [name for name in names if name in read]
        values = [self._table.column(name).to_pylist() for name in wanted]
        rows = zip(*values, strict=True) if wanted else ((),) * len(self._table)
        self.readable = [
            ReadRow(position, ordinal, line, dict(zip(wanted, row, strict=True)))
            for position, (ordinal, line, row) in enumerate(
                zip(chunk.ordinals.tolist(), chunk.lines.tolist(), rows, strict=True)
            )
        ]

    def kept(self, positions: Sequence[int | None]) -> pa.Table:
        carried = [name for name in self.column_names if name not in self._ours]
        taken = self._table.select(carried).take(pa.array(positions, pa.int64()))
        plain = [_plain(taken.column(name)) for name in carried]
        return pa.table(dict(zip(carried, plain, strict=True))) if carried else _no_columns(len(positions))

    def num_bytes(self, positions: Sequence[int]) -> Sequence[int]:
        each = self._table.nbytes // max(1, len(self._table))
        return np.full(len(positions), each).tolist()

    def raw(self, position: int) -> str | None:
        return None


def _plain(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values if values.type == normalised(values.type) else _cast_plain(values)


def _cast_plain(values: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return (
        conform(values, normalised(values.type))
        if not pa.types.is_nested(values.type)
        else values.cast(normalised(values.type))
    )


def _no_columns(num_rows: int) -> pa.Table:
    return pa.table({"_row": pa.nulls(num_rows)})
