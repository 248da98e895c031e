"""CSV and TSV files with a header line. Every column is text, exactly as written; quoted fields may hold line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from configs.errors import SourceError
from pipeline.source.chunk import BadRow, TableChunk
from pipeline.source.tables import MAX_BATCH_ROWS, sparse_chunk

MAX_FIELD_CHARS = 64 << 20
"""A field beyond this is a quote that nobody closed."""


@dataclass
class _Batch:
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    num_chars: int = 0

    def __len__(self) -> int:
        return len(self.rows) + len(self.bad)

    def add(self, row: list[str], ordinal: int, line: int) -> None:
        if len(row) != len(self.header):
            message = f"the row has {len(row)} fields, the header {len(self.header)}"
            self.add_bad(ordinal, line, "malformed_csv", message, row)
        elif any(not each.isascii() and not _is_utf8(each) for each in row):
            self.add_bad(ordinal, line, "invalid_utf8", "the row is not UTF-8", row)
        else:
            self.rows.append(row)
            self.ordinals.append(ordinal)
            self.lines.append(line)
            self.num_chars += sum(map(len, row))

    def add_bad(self, ordinal: int, line: int, code: str, message: str, row: list[str]) -> None:
        raw = ",".join(row).encode(errors="surrogateescape").decode(errors="replace")
        self.bad.append(BadRow(ordinal, line, code, message, raw))

    def chunk(self, file: int) -> TableChunk:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        arrays = [pa.array(column, pa.string()) for column in columns]
        return sparse_chunk(pa.record_batch(arrays, names=self.header), file, self.ordinals, self.lines, self.bad)


def read_csv(
    stream: pa.NativeFile, file: int, path: str, first_ordinal: int, chunk_bytes: int, delimiter: str
) -> Iterator[TableChunk]:
    """The file's rows; their line is the one on which they begin. Rows of another length than the header, with broken
    quotes or not in UTF-8 are bad rows.

    Raises:
        SourceError: no header, a column twice, or an open quote that swallows rows.
    """
    csv.field_size_limit(MAX_FIELD_CHARS)
    # Undecodable bytes survive as surrogates, so that they fail their row and not the file.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    batch = _Batch(_header(reader, path))
    ordinal, line = first_ordinal, reader.line_num + 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if "field larger" in str(error):
                raise SourceError(f"{path}, line {line}: a quote is opened here and never closed") from None
            if reader.line_num > line:
                raise SourceError(
                    f"{path}, line {line}: a quote is opened here and not closed as it should be; the rows up to line "
                    f"{reader.line_num} cannot be told apart; close it, or double a quote that is meant"
                ) from None
            batch.add_bad(ordinal, line, "malformed_csv", f"broken quotes: {error}", [])
            row = None
        if row:
            batch.add(row, ordinal, line)
        ordinal += row != []
        line = reader.line_num + 1
        if len(batch) >= MAX_BATCH_ROWS or batch.num_chars >= chunk_bytes:
            yield batch.chunk(file)
            batch = _Batch(batch.header)
    if len(batch):
        yield batch.chunk(file)


def _header(reader: Iterator[list[str]], path: str) -> list[str]:
    try:
        header = next(row for row in reader if row)
    except StopIteration:
        raise SourceError(f"{path} is empty; a CSV file begins with a line of column names") from None
    except csv.Error as error:
        raise SourceError(f"{path}: the header line is broken: {error}") from None
    if not all(_is_utf8(name) for name in header):
        raise SourceError(f"{path}: the header line is not UTF-8; convert it: iconv -f LATIN1 (or UTF-16) -t UTF-8")
    twice = next((name for name in header if header.count(name) > 1 or not name.strip()), None)
    if twice is not None:
        flaw = "twice" if twice.strip() else "(empty)"
        raise SourceError(f"{path}: the header names column {twice!r} {flaw}; give every column a name of its own")
    return header


def _is_utf8(text: str) -> bool:
    return not any("\udc80" <= char <= "\udcff" for char in text)
