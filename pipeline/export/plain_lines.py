"""Output rows as they are: `jsonl`, an object per row, and `csv`, with nested values as JSON text.

Error rows have the columns of `errors/` in JSON lines, and those of the dataset, `error` and `raw` in CSV. Columns that
a run keeps as JSON text become JSON again in JSON lines.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.committed_shard import CommittedShard
from pipeline.export.json_line import json_line, plain
from pipeline.export.line import Line, line_of

CSV_ERROR_COLUMNS = ("error", "raw")


class _RowLines(ABC):
    """A line for each row, ok or not."""

    def shard(self, shard: CommittedShard) -> Iterator[Line]:
        for row in rows_of(shard):
            yield self._line(row, shard.footer.task)

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        for row in rows.to_pylist():
            yield self._line(row, row["task"])

    @abstractmethod
    def _line(self, row: Mapping[str, Any], task: str | None) -> Line: ...


class JsonLines(_RowLines):
    """One object per row, all columns."""

    suffix = ".jsonl"
    header = None

    def __init__(self, json_columns: Collection[str]) -> None:
        self._json_columns = json_columns

    def _line(self, row: Mapping[str, Any], task: str | None) -> Line:
        return line_of(json_line(with_json(row, self._json_columns)), row, task)


class CsvLines(_RowLines):
    """RFC 4180 with LF, UTF-8. Text is quoted and null is not, so that an empty text is told from none."""

    suffix = ".csv"

    def __init__(self, columns: Sequence[str], with_errors: bool) -> None:
        extra = [name for name in CSV_ERROR_COLUMNS if name not in columns] if with_errors else []
        self._columns = [*columns, *extra]
        self.header = ",".join(map(_cell, self._columns))

    def _line(self, row: Mapping[str, Any], task: str | None) -> Line:
        return line_of(",".join(_cell(row.get(name)) for name in self._columns), row, task)


def rows_of(shard: CommittedShard) -> Iterator[dict[str, Any]]:
    """The ok rows, then the error rows."""
    yield from shard.ok.to_pylist()
    if shard.errors is not None:
        yield from shard.errors.to_pylist()


def with_json(row: Mapping[str, Any], json_columns: Collection[str]) -> dict[str, Any]:
    """The row with its JSON text columns read."""
    texts = {name: row[name] for name in json_columns if row.get(name) is not None}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict | list):
        value = json_line(value)
    text = value if isinstance(value, str) else plain(value)
    return '"' + text.replace('"', '""') + '"'
