"""What planning found out about the rows: adds up over chunk reports, in input order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.planning.chunk import ChunkReport, RowProblem, first_problems
from pipeline.planning.json_type import JsonType


@dataclass
class Findings:
    """See the module's docstring."""

    num_rows: int = 0
    num_bytes: int = 0
    column_names: dict[str, None] = field(default_factory=dict)
    """Under their new names, in order of appearance."""
    json_types: dict[str, JsonType] = field(default_factory=dict)
    """Of the carried columns, if the rows are JSON."""
    schemas: list[tuple[int, pa.Schema]] = field(default_factory=list)
    """(file, carried columns), if the rows are Arrow."""
    rejected: Counter[str] = field(default_factory=Counter)
    bad_chunks: list[int] = field(default_factory=list)
    """Chunks with rejected rows."""
    problems: list[RowProblem] = field(default_factory=list)
    first_prompts: dict[str, str] = field(default_factory=dict)
    num_cut: Counter[str] = field(default_factory=Counter)

    def add(self, report: ChunkReport) -> None:
        """Take in the next chunk of the input."""
        self.num_rows += report.num_rows
        self.num_bytes += report.num_bytes
        self.column_names |= dict.fromkeys(report.column_names)
        for name, seen in (report.json_types or {}).items():
            self.json_types[name] = self.json_types.get(name, JsonType()) + seen
        if report.schema is not None and (report.file, report.schema) not in self.schemas[-1:]:
            self.schemas.append((report.file, report.schema))
        self.first_prompts = report.first_prompts | self.first_prompts
        self.num_cut += report.num_cut
        if report.rejected:
            self.bad_chunks.append(report.number)
            self.add_rejected(report.rejected, report.problems)

    def add_rejected(self, codes: Counter[str], problems: list[RowProblem]) -> None:
        self.rejected += codes
        self.problems = first_problems([*self.problems, *problems])
