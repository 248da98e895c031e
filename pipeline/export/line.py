"""What an export writes: lines, each with where its row came from, made by a format from shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pipeline.committed_shard import CommittedShard


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without its end."""

    text: str
    task: str | None
    """None for a row that failed before its task was known."""
    source_file: str | None
    source_line: int | None


def line_of(text: str, row: Mapping[str, Any], task: str | None) -> Line:
    """The line of a row; where it came from is unknown if the run did not keep that."""
    return Line(text, task, row.get("source_file"), row.get("source_line"))


class LineFormat(Protocol):
    """From tables to lines, in the tables' order."""

    @property
    def suffix(self) -> str:
        """Of a file in this format: `.jsonl`."""
        ...

    @property
    def header(self) -> str | None:
        """The first line of each file."""
        ...

    def shard(self, shard: CommittedShard) -> Iterator[Line]: ...

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        """Rows that failed while planning."""
        ...
