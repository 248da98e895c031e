"""A piece of the input on its way to the planners: whole rows, with where they came from.

Rows are numbered twice: by line within their file, for people, and by ordinal over the whole source, which is their
order. Blank lines have a line but no ordinal. A chunk is small, picklable and cut the same way on every reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that its reader could not read; `raw` is its text."""

    ordinal: int
    line: int
    code: str
    message: str
    raw: str


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Whole lines of a text file, still unparsed. The n-th non-blank line has ordinal `first_ordinal + n`."""

    file: int
    first_line: int
    """1-based."""
    first_ordinal: int
    num_rows: int
    """Non-blank lines."""
    data: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def head(self, num_rows: int) -> LineChunk:
        """The first rows of the chunk."""
        kept: list[bytes] = []
        left = num_rows
        for line in self.data.split(b"\n"):
            if left == 0:
                break
            kept.append(line)
            left -= not is_blank(line)
        return LineChunk(self.file, self.first_line, self.first_ordinal, num_rows - left, b"\n".join(kept))


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Rows of a columnar file as one Arrow IPC stream; `ordinals` and `lines` have one entry per row of it."""

    file: int
    ordinals: Int64Array
    lines: Int64Array
    """1-based: the row of a columnar file, the line on which a CSV row begins."""
    ipc: bytes
    bad: tuple[BadRow, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.ordinals) + len(self.bad)

    @property
    def num_bytes(self) -> int:
        return len(self.ipc)

    def head(self, num_rows: int) -> TableChunk:
        """The first rows of the chunk, bad ones included."""
        places = sorted([*self.ordinals.tolist(), *(row.ordinal for row in self.bad)])[:num_rows]
        last = places[-1] if places else -1
        kept = int(np.searchsorted(self.ordinals, last, side="right"))
        with pa.ipc.open_stream(self.ipc) as stream:
            table = stream.read_all().slice(0, kept)
        bad = tuple(row for row in self.bad if row.ordinal <= last)
        return TableChunk(self.file, self.ordinals[:kept], self.lines[:kept], table_bytes(table), bad)


Chunk = LineChunk | TableChunk


def is_blank(line: bytes) -> bool:
    return not line or line.isspace()


def table_bytes(table: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
