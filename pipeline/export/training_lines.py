"""Samples as training examples: `{"messages": [..., {"role": "assistant", "content": <text>}]}`, one per ok sample.

The conversation is made again from the carried columns as it was made while planning: messages or prompt, the task's
template, its system prompt. It is the whole prompt, also where `too_long` cut what the model saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from configs.errors import UsageError
from configs.job import Job, Task
from pipeline.committed_shard import CommittedShard
from pipeline.export.json_line import json_line
from pipeline.export.line import Line, line_of
from pipeline.export.plain_lines import with_json
from pipeline.plan import Plan
from pipeline.planning.prompt import Conversation, Templates
from pipeline.planning.row_check import RejectedRow, RowCheck
from pipeline.schema import OUTPUT_NAMES, sample_of
from pipeline.source.column_map import ColumnMap
from pipeline.source.earlier_run import NEW_NAMES, PREFIX


class TrainingLines:
    """See the module's docstring.

    Raises:
        UsageError: the run did not keep the answer, or a column that a prompt is made of.
    """

    suffix = ".jsonl"
    header = None

    def __init__(self, plan: Plan, kept: pa.Schema) -> None:
        job = Job.model_validate(plan.job)
        tasks = {"default": Task(), **job.tasks}
        self._plan = plan
        self._columns = column_map(job)
        self._templates = Templates(tasks)
        self._check = RowCheck(job, self._templates, self._columns)
        self._refuse_dropped(frozenset(kept.names))

    def shard(self, shard: CommittedShard) -> Iterator[Line]:
        carried = [name for name in shard.ok.column_names if name not in OUTPUT_NAMES]
        for row in shard.ok.to_pylist():
            columns = with_json({name: row[name] for name in carried}, self._plan.json_columns)
            row_id, _ = sample_of(row["row_id"])
            asked = self._conversation(row_id, {**columns, "id": row_id, "task": shard.footer.task})
            messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            answer = {"role": "assistant", "content": row["text"]}
            yield line_of(json_line({"messages": [*messages, answer]}), row, shard.footer.task)

    def rejected(self, rows: pa.Table) -> Iterator[Line]:
        """None: what has no answer teaches nothing."""
        return iter(())

    def _conversation(self, row_id: str, row: Mapping[str, Any]) -> Conversation:
        checked = self._check.check(row, 0, 0, 0)
        if isinstance(checked, RejectedRow):
            # A column that the input row lacked is null here, and a template may tell the two apart.
            checked = self._check.check({name: value for name, value in row.items() if value is not None}, 0, 0, 0)
        if isinstance(checked, RejectedRow):
            raise UsageError(
                f"row {row_id}: its prompt cannot be made again from the columns that the run kept "
                f"({checked.message}); export jsonl instead"
            )
        return checked.conversation

    def _refuse_dropped(self, kept: frozenset[str]) -> None:
        if "text" not in kept:
            raise UsageError("sft-jsonl needs the column `text`, which sink.columns of this run left out")
        for task in sorted({shard.task for shard in self._plan.shards}):
            dropped = self._needed(task) & frozenset(self._plan.carried.names) - kept
            if dropped:
                names = ", ".join(f"`{name}`" for name in sorted(dropped))
                raise UsageError(
                    f"sft-jsonl makes the prompts of task {task} from {names}, which sink.columns of this run left "
                    f"out; run with sink.columns that include them"
                )

    def _needed(self, task: str) -> frozenset[str]:
        named = frozenset(self._columns.rename.get(name, name) for name in self._templates.columns(task))
        if self._templates.has_prompt(task):
            return named
        return named | {self._columns.part("prompt"), self._columns.part("messages")}


def column_map(job: Job) -> ColumnMap:
    """The parts that output columns play: id and task are ours by now, the sampling was for the run."""
    paths = (job.source.path,) if isinstance(job.source.path, str) else job.source.path
    renamed = NEW_NAMES if any(path.startswith(PREFIX) for path in paths) else {}
    given = ColumnMap.of(job.source.columns, job.source.rename)
    names = {**renamed, **job.source.rename}
    return replace(given, id="id", task="task", rename=names, overrides=False, foreign_tasks=True)
