"""Output rows as they are: `jsonl`, an object per row, and `csv`, with nested values as JSON text.

Error rows have the columns of `errors/` in JSON lines, and those of the dataset, `error` and `raw` in CSV. Columns that a
run keeps as JSON text become JSON again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.committed_shard import CommittedShard
from pipeline.export_line import Line
from pipeline.json_line import json_line

CSV_ERROR_COLUMNS = ("error", "raw")


class JsonLines:
    """One object per row, all columns."""

    suffix = ".jsonl"
    header = None

    def __init__(self, json_columns: Collection[str]) -> None:
        self._json_columns = json_columns

    def shard(self, shard: CommittedShard) -> Iterator[Line]:
        for table in (shard.ok, shard.errors):
            if table is not None:
                yield from self.rejected(table)

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        for row in rows.to_pylist():
            yield line_of(json_line(with_json(row, self._json_columns)), row)


class CsvLines:
    """RFC 4180, comma, UTF-8. Text is quoted and null is not, so that an empty text is told from none."""

    suffix = ".csv"

    def __init__(self, columns: Sequence[str], with_errors: bool) -> None:
        extra = [name for name in CSV_ERROR_COLUMNS if name not in columns] if with_errors else []
        self._columns = [*columns, *extra]
        self.header = ",".join(_cell(name) for name in self._columns)

    def shard(self, shard: CommittedShard) -> Iterator[Line]:
        for table in (shard.ok, shard.errors):
            if table is not None:
                yield from self.rejected(table)

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        for row in rows.to_pylist():
            yield line_of(",".join(_cell(row.get(name)) for name in self._columns), row)


def with_json(row: Mapping[str, Any], json_columns: Collection[str]) -> dict[str, Any]:
    """The row with its JSON text columns read."""
    texts = {name: row[name] for name in json_columns if row.get(name) is not None}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def line_of(text: str, row: Mapping[str, Any]) -> Line:
    return Line(text, row.get("task"), row.get("source_file"), row.get("source_line"))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else json_line(value)
    # A date is a JSON string, and a cell needs no second pair of quotes.
    text = json.loads(text) if not isinstance(value, str | dict | list) else text
    return '"' + text.replace('"', '""') + '"'
