"""What an export writes: lines, each with where its row came from, made by a format from shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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


class LineFormat(Protocol):
    """From tables to lines, in the tables' order."""

    suffix: str
    """Of a file in this format: `.jsonl`."""
    header: str | None
    """The first line of each file."""

    def shard(self, shard: CommittedShard) -> Iterator[Line]: ...

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        """Rows that failed while planning."""
        ...
