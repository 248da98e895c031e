"""Lines in the order of the input, sorted out of core."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from configs.errors import StorageError
from pipeline.export.line import Line

MEMORY_LIMIT = "256MB"
BATCH_CHARS = 16 << 20
FETCH_LINES = 100
"""Few, since a line may be a megabyte."""

COLUMNS = pa.schema(
    [
        ("file", pa.int32()),
        ("source_line", pa.int64()),
        ("number", pa.int64()),
        ("task", pa.string()),
        ("line", pa.string()),
    ]
)


def in_source_order(lines: Iterable[Line], files: Sequence[str]) -> Iterator[Line]:
    """The same lines by input file, then line, then as they came (so a row's samples stay in order).

    Args:
        files: the input's, in order.

    Raises:
        StorageError: there is no room for the sort.
    """
    with tempfile.TemporaryDirectory(prefix="draftfleet-export-") as folder:
        try:
            with contextlib.closing(duckdb.connect(str(Path(folder) / "lines.duckdb"))) as database:
                database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
                database.execute("SET temp_directory = ?", [str(Path(folder) / "sort")])
                _load(database, lines, {path: number for number, path in enumerate(files)})
                yield from _sorted(database)
        except duckdb.Error as error:
            raise StorageError(f"cannot sort in {folder}: {error}; set TMPDIR to a disk with more room") from error


def _load(database: duckdb.DuckDBPyConnection, lines: Iterable[Line], files: dict[str, int]) -> None:
    database.register("arrived", COLUMNS.empty_table())
    database.execute("CREATE TABLE lines AS SELECT * FROM arrived")
    for batch in _batches(lines, files):
        database.register("arrived", batch)
        database.execute("INSERT INTO lines SELECT * FROM arrived")
    database.unregister("arrived")


def _batches(lines: Iterable[Line], files: dict[str, int]) -> Iterator[pa.Table]:
    rows: list[tuple[int, int | None, int, str | None, str]] = []
    num_chars = 0
    for number, line in enumerate(lines):
        rows.append((files.get(line.source_file or "", len(files)), line.source_line, number, line.task, line.text))
        num_chars += len(line.text)
        if num_chars >= BATCH_CHARS:
            yield _table(rows)
            rows, num_chars = [], 0
    yield _table(rows)


def _table(rows: list[tuple[int, int | None, int, str | None, str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)], COLUMNS)


def _sorted(database: duckdb.DuckDBPyConnection) -> Iterator[Line]:
    found = database.execute("SELECT line, task FROM lines ORDER BY file, source_line, number")
    while rows := found.fetchmany(FETCH_LINES):
        for text, task in rows:
            yield Line(text, task, None, None)
