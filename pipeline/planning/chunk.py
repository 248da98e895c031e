"""One chunk of the input, planned: every row checked, rendered and tokenized; good ones spilled, with their sort keys.

This is the part of planning that takes the time, so it runs in as many processes as there are cores. A planner holds
the tokenizer and the compiled templates, spills the rows (`spill`) and hands back little.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.errors import RowError
from configs.job import Job, Task
from pipeline.planning.chunk_rows import ChunkRows, JsonFormat, JsonRows, TableRows
from pipeline.planning.json_type import JsonType, observe
from pipeline.planning.keys import KEY_SCHEMA, work_tokens
from pipeline.planning.prompt import Asked, ChatTokenizer, Prompt, Templates
from pipeline.planning.row_check import OVERRIDES, CheckedRow, RejectedRow, RowCheck
from pipeline.planning.spill import GoodRow, write_bad, write_good
from pipeline.source.chunk import Chunk, LineChunk
from pipeline.source.column_map import ColumnMap

PROBLEMS_PER_CODE = 20


@dataclass(frozen=True)
class PlannerSpec:
    """All that a planner needs; picklable."""

    job: Job
    columns: ColumnMap
    is_batch: bool
    """The lines are an OpenAI batch."""
    model_folder: Path
    chat_template: str | None
    max_model_len: int
    spill_dir: Path


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One rejected row, for people. `file` is an index of the source's files."""

    ordinal: int
    file: int
    line: int
    code: str
    message: str


@dataclass(frozen=True)
class ChunkReport:
    """What a planned chunk tells the process that gathers them."""

    number: int
    file: int
    num_rows: int
    num_bytes: int
    keys: pa.Table
    """One row per good row; see `keys`."""
    column_names: Sequence[str]
    json_types: dict[str, JsonType] | None
    schema: pa.Schema | None
    """Of columnar rows: the carried columns as they are in this file."""
    rejected: Counter[str]
    problems: list[RowProblem]
    first_prompts: dict[str, str]
    num_cut: Counter[str]


class ChunkPlanner:
    """Plans chunks one after the other. Makes no use of the order in which it gets them."""

    def __init__(self, spec: PlannerSpec) -> None:
        tasks = {"default": Task(), **spec.job.tasks}
        self._spec = spec
        self._tasks = sorted(tasks)
        self._templates = Templates(tasks)
        self._tokenizer = ChatTokenizer(spec.model_folder, tasks, spec.chat_template)
        self._check = RowCheck(spec.job, self._templates, spec.columns)
        self._format = JsonFormat(spec.columns, spec.job.model.known_as if spec.is_batch else None)
        self._read = self._columns_read()

    def _columns_read(self) -> frozenset[str]:
        """Every column that a check or a template may look at, under its new name."""
        columns = self._spec.columns
        named = {name for task in self._tasks for name in self._templates.columns(task)}
        parts = {columns.part(part) for part in ("id", "task", "prompt", "messages")}
        return frozenset(columns.rename.get(name, name) for name in named) | named | parts | frozenset(OVERRIDES)

    def plan(self, number: int, chunk: Chunk) -> ChunkReport:
        """Plan one chunk and write its files."""
        rows = self._rows(chunk)
        checked = [self._check.check(row.values, row.position, row.ordinal, row.line) for row in rows.readable]
        passed = [row for row in checked if isinstance(row, CheckedRow)]
        rejected = [*rows.rejected, *(row for row in checked if isinstance(row, RejectedRow))]
        prompts = self._tokenizer.prompts([self._asked(row) for row in passed])
        good = [(row, prompt) for row, prompt in zip(passed, prompts, strict=True) if isinstance(prompt, Prompt)]
        rejected += [
            RejectedRow(row.position, row.ordinal, row.line, prompt.code, prompt.message, row.id, row.task)
            for row, prompt in zip(passed, prompts, strict=True)
            if isinstance(prompt, RowError)
        ]
        rejected.sort(key=lambda row: row.ordinal)
        return self._report(number, chunk, rows, good, rejected)

    def _rows(self, chunk: Chunk) -> ChunkRows:
        if isinstance(chunk, LineChunk):
            return JsonRows(chunk, self._format)
        return TableRows(chunk, self._spec.columns, self._read)

    def _asked(self, row: CheckedRow) -> Asked:
        return Asked(row.task, row.conversation, self._spec.max_model_len - row.sampling.max_tokens)

    def _report(
        self,
        number: int,
        chunk: Chunk,
        rows: ChunkRows,
        good: list[GoodRow],
        rejected: list[RejectedRow],
    ) -> ChunkReport:
        positions = [row.position for row, _ in good]
        kept = rows.kept(positions)
        is_json = isinstance(chunk, LineChunk)
        if good:
            write_good(self._spec.spill_dir, number, good, chunk.file, kept)
        if rejected:
            lost = rows.kept([row.position for row in rejected])
            write_bad(self._spec.spill_dir, number, rejected, chunk.file, lost)
        return ChunkReport(
            number=number,
            file=chunk.file,
            num_rows=chunk.num_rows,
            num_bytes=chunk.num_bytes,
            keys=self._keys(number, chunk.file, good, rows.num_bytes(positions)),
            column_names=rows.column_names,
            json_types=self._json_types(rows, good) if is_json else None,
            schema=None if is_json else kept.schema,
            rejected=Counter(row.code for row in rejected),
            problems=first_problems(
                [RowProblem(row.ordinal, chunk.file, row.line, row.code, row.message) for row in rejected]
            ),
            first_prompts={row.task: prompt.text for row, prompt in reversed(good)},
            num_cut=Counter(row.task for row, prompt in good if prompt.was_cut),
        )

    def _json_types(self, rows: ChunkRows, good: list[GoodRow]) -> dict[str, JsonType]:
        """The types of the carried columns, over good rows alone: a bad row must not spoil a column's type."""
        columns: dict[str, list[object]] = {}
        by_position = {row.position: row.values for row in rows.readable}
        for row, _ in good:
            for name, value in self._format.carried_of(by_position[row.position]).items():
                columns.setdefault(name, []).append(value)
        return {name: observe(values) for name, values in columns.items()}

    def _keys(self, number: int, file: int, good: list[GoodRow], num_bytes: Sequence[int]) -> pa.Table:
        ids = [hashlib.blake2b(row.id.encode(), digest_size=16).digest() for row, _ in good]
        halves = np.frombuffer(b"".join(ids), dtype=np.int64).reshape(-1, 2)
        lengths = np.array([len(prompt.token_ids) for _, prompt in good], dtype=np.int64)
        max_tokens = np.array([row.sampling.max_tokens for row, _ in good], dtype=np.int64)
        samples = np.array([row.sampling.n for row, _ in good], dtype=np.int64)
        return pa.table(
            {
                "task": [self._tasks.index(row.task) for row, _ in good],
                "sampled": [row.sampling.temperature > 0 for row, _ in good],
                "work": work_tokens(lengths, max_tokens, samples),
                "ordinal": [row.ordinal for row, _ in good],
                "chunk": np.full(len(good), number),
                "row": np.arange(len(good)),
                "prompt_tokens": lengths,
                "max_tokens": max_tokens,
                "samples": samples,
                "bytes": np.array(num_bytes, dtype=np.int64) + 4 * lengths,
                "id_high": halves[:, 0],
                "id_low": halves[:, 1],
                "digest": [_digest(row, prompt) for row, prompt in good],
                "file": np.full(len(good), file),
                "line": [row.line for row, _ in good],
            }
        ).cast(KEY_SCHEMA)


def _digest(row: CheckedRow, prompt: Prompt) -> int:
    """What the plan's hash keeps of a row: all that the engine sees of it."""
    state = hashlib.blake2b(json.dumps([row.id, row.task]).encode(), digest_size=8)
    state.update(row.sampling.model_dump_json().encode())
    state.update(np.array(prompt.token_ids, dtype=np.int32).tobytes())
    return int.from_bytes(state.digest(), "little", signed=True)


def first_problems(problems: list[RowProblem]) -> list[RowProblem]:
    """The first few of each code, in input order."""
    kept: Counter[str] = Counter()
    first: list[RowProblem] = []
    for problem in sorted(problems, key=lambda problem: problem.ordinal):
        kept[problem.code] += 1
        if kept[problem.code] <= PROBLEMS_PER_CODE:
            first.append(problem)
    return first
