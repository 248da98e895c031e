"""The rows of a chunk, whatever its format: what the check reads of each, and what of them is kept for the output.

JSON rows are kept as their text, and typed only when the shard is written, since the types are known only then.
Columnar rows stay Arrow from the file to the shard; only the columns that a check or a template reads become Python
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from configs.errors import RowError
from pipeline.planning.carried import normalised
from pipeline.planning.row_check import RejectedRow
from pipeline.source import openai_batch
from pipeline.source.chunk import BadRow, LineChunk, TableChunk, is_blank
from pipeline.source.column_map import ColumnMap
from pipeline.source.jsonl import parse_object

MAX_RAW_CHARS = 65_536
JSON_COLUMN = "draftfleet.json"
"""Of the spill. Names of its own have a dot, so that no column of the user is likely to bear one."""


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
        return self.row_of(parse_object(text))

    def row_of(self, line: dict[str, Any]) -> dict[str, Any]:
        """`row`, of a line that is parsed already."""
        batch = self.batch_model
        return self.columns.renamed(line if batch is None else openai_batch.batch_row(line, batch))

    def id_of(self, line: Mapping[str, Any]) -> str | None:
        """The id of a line that is no row, if it has one."""
        found = line.get("custom_id")
        return found if self.batch_model is not None and isinstance(found, str) and found else None

    def carried_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row that go to the output."""
        return {name: value for name, value in row.items() if name not in self._dropped}

    @cached_property
    def _dropped(self) -> frozenset[str]:
        return self.columns.ours | (openai_batch.NOT_CARRIED if self.batch_model is not None else frozenset())


class JsonRows:
    """Rows of a text chunk. Lines that are no rows are rejected with their text."""

    def __init__(self, chunk: LineChunk, format: JsonFormat) -> None:
        self.readable: list[ReadRow] = []
        self.rejected: list[RejectedRow] = []
        self._lines: list[bytes] = []
        self._names: dict[str, None] = {}
        for ordinal, line, text in _numbered(chunk):
            parsed: dict[str, Any] = {}
            try:
                parsed = parse_object(text)
                row = format.row_of(parsed)
            except RowError as error:
                known = format.id_of(parsed)
                self.rejected.append(
                    RejectedRow(None, ordinal, line, error.code, error.message, known, raw=_shown(text))
                )
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
        self.column_names = columns.new_names(table.column_names)
        self.rejected = [_bad_row(bad) for bad in chunk.bad]
        sound = _sound_rows(table)
        self.rejected += [_not_utf8(chunk, int(place)) for place in np.flatnonzero(~sound)]
        self._table = table.rename_columns(self.column_names).filter(pa.array(sound))
        self._carried = [name for name in self.column_names if name not in columns.ours]
        ordinals, lines = chunk.ordinals[sound].tolist(), chunk.lines[sound].tolist()
        rows = _python_rows(self._table, [name for name in self.column_names if name in read])
        places = enumerate(zip(ordinals, lines, rows, strict=True))
        there = dict.fromkeys(self.column_names)  # an error that names a row's columns names those not read as well
        self.readable = [ReadRow(position, ordinal, line, there | row) for position, (ordinal, line, row) in places]

    def kept(self, positions: Sequence[int | None]) -> pa.Table:
        taken = self._table.select(self._carried).take(pa.array(positions, pa.int64()))
        return pa.table({name: _plain(taken.column(name)) for name in self._carried})

    def num_bytes(self, positions: Sequence[int]) -> Sequence[int]:
        return [self._table.nbytes // max(1, len(self._table))] * len(positions)


def _bad_row(bad: BadRow) -> RejectedRow:
    return RejectedRow(None, bad.ordinal, bad.line, bad.code, bad.message, raw=bad.raw)


def _not_utf8(chunk: TableChunk, place: int) -> RejectedRow:
    ordinal, line = int(chunk.ordinals[place]), int(chunk.lines[place])
    return RejectedRow(None, ordinal, line, "invalid_utf8", "a text of the row is not UTF-8")


def _sound_rows(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows hold only texts that are UTF-8; some writers of columnar files do not look."""
    if _is_sound(table):
        return np.ones(len(table), dtype=bool)
    return np.array([_is_sound(table.slice(place, 1)) for place in range(len(table))], dtype=bool)


def _is_sound(table: pa.Table) -> bool:
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _python_rows(table: pa.Table, names: list[str]) -> list[dict[str, Any]]:
    if not names:
        return [{} for _ in range(len(table))]
    columns = (table.column(name).to_pylist() for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """The same values in the plain form of their type."""
    values = column.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    wanted = normalised(values.type)
    return values if values.type == wanted else values.cast(wanted)
