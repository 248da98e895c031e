"""Planning, from the source to the written plan. See `pipeline.plan` for what comes out.

    chunks of rows  --processes-->  spill + sort keys  -->  duplicates, order  -->  shards  -->  parts  -->  CURRENT

Memory stays flat: chunks pass through, rows wait in the spill on disk, keys are sorted out of core, parts are gathered
one after the other. What grows with the input is the list of shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from configs.errors import SourceError, StorageError
from configs.job import Job, Task
from pipeline.fleet import refuse_small_cache
from pipeline.plan import PLAN_VERSION, GroupCount, OnProgress, Plan, PlannedShard, PlanProgress, Problem, load_plan
from pipeline.planning.carried import (
    CarriedSchema,
    from_arrow,
    from_json,
    refuse_clashes,
    refuse_unknown_columns,
    schema_text,
)
from pipeline.planning.chunk import PROBLEMS_PER_CODE, PlannerSpec, RowProblem
from pipeline.planning.chunk_rows import JsonFormat
from pipeline.planning.commit import commit_plan, refuse_other_job
from pipeline.planning.findings import Findings
from pipeline.planning.fingerprint import fingerprint_now, fingerprint_of, max_model_len, read_chat_template
from pipeline.planning.keys import LANES, KeyTable
from pipeline.planning.pool import PlanPool
from pipeline.planning.rejected import duplicate_problems
from pipeline.planning.shard_cut import RowCost, ShardBounds, cut_shards
from pipeline.planning.write import Part, WriteSpec
from pipeline.source.opening import OpenSource, open_source
from pipeline.store.base import Store

DEFAULT_TASK = "default"
CPU_TOKENS_PER_SECOND = 150.0
GPU_TOKENS_PER_SECOND = 2000.0


def plan_job(
    job: Job,
    base_dir: Path,
    model_folder: Path,
    out: Store | None,
    on_progress: OnProgress | None,
    processes: int | None,
) -> Plan:
    """See `pipeline.plan.make_plan`."""
    existing = load_plan(out) if out is not None else None
    if out is not None and existing is not None:
        refuse_other_job(out, existing, fingerprint_now(job, base_dir, model_folder))
        return existing
    source = open_source(job, base_dir)
    with _temporary_folder() as folder, _told(folder):
        spec = PlannerSpec(
            job=job,
            columns=source.columns,
            is_batch=source.format == "openai_batch",
            model_folder=model_folder,
            chat_template=read_chat_template(job, base_dir),
            max_model_len=max_model_len(job, model_folder),
            spill_dir=Path(folder),
        )
        with PlanPool(spec, processes or len(os.sched_getaffinity(0))) as pool, KeyTable(spec.spill_dir) as keys:
            return _Planning(spec, base_dir, source, pool, keys, on_progress or _silent).run(out)


@contextmanager
def _told(folder: str) -> Iterator[None]:
    """Sources and stores speak for themselves; what else fails on a disk fails on that of the temporary files."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # what DuckDB makes of a KeyboardInterrupt
            raise KeyboardInterrupt from error
        raise
    except (OSError, duckdb.Error) as error:
        raise StorageError(f"planning failed in {folder}: {error}; is its disk full? TMPDIR names another") from error


def _silent(progress: PlanProgress) -> None:
    pass


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="draftfleet-plan-")
    except OSError as error:
        raise StorageError(f"no temporary folder in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR") from None


class _Planning:
    """One planning. Its methods are the steps, in order."""

    def __init__(
        self,
        spec: PlannerSpec,
        base_dir: Path,
        source: OpenSource,
        pool: PlanPool,
        keys: KeyTable,
        on_progress: OnProgress,
    ) -> None:
        self._spec = spec
        self._base_dir = base_dir
        self._source = source
        self._pool = pool
        self._keys = keys
        self._on_progress = on_progress
        self._tasks: dict[str, Task] = {DEFAULT_TASK: Task(), **spec.job.tasks}
        self._task_names = sorted(self._tasks)
        self._findings = Findings()

    def run(self, out: Store | None) -> Plan:
        self._check_rows()
        self._tell("sort")
        carried = self._carried()
        refuse_unknown_columns(self._spec.job.sink.columns, carried.schema)
        write = self._write_spec(carried)
        self._drop_duplicates(write)
        self._keys.sort()
        refuse_small_cache(self._spec.job, self._keys.longest_request())
        shards = tuple(cut_shards(self._costs(), shard_bounds(self._spec.job)))
        plan = self._plan(carried, shards)
        if out is not None:
            plan = commit_plan(out, plan, write, self._written(write, shards), self._findings.bad_chunks, self._keys)
        self._tell("done")
        return plan

    def _check_rows(self) -> None:
        for report in self._pool.reports(self._source.chunks()):
            known = len(self._findings.column_names)
            self._findings.add(report)
            self._keys.add(report.keys)
            if len(self._findings.column_names) > known:
                path = self._source.files[report.file].path
                refuse_clashes(self._findings.column_names, self._spec.columns.ours, path)
            self._tell("rows")
        if self._findings.num_rows == 0:
            raise SourceError(f"source.path: {self._source.files[0].path} has no rows; nothing to do")
        self._refuse_changed_files()

    def _refuse_changed_files(self) -> None:
        """The plan's fingerprint must be of what was read."""
        now = set(open_source(self._spec.job, self._base_dir).files)
        changed = [file.path for file in self._source.files if file not in now]
        if changed:
            raise SourceError(f"{changed[0]} changed while it was read; plan again when it is complete")

    def _tell(self, stage: str, parts: int = 0, num_parts: int = 0) -> None:
        found = self._findings
        rejected = sum(found.rejected.values())
        self._on_progress(
            PlanProgress(stage, found.num_rows, rejected, found.num_bytes, self._source.num_bytes, parts, num_parts)
        )

    def _carried(self) -> CarriedSchema:
        if self._findings.schemas:
            paths = [self._source.files[file].path for file, _ in self._findings.schemas]
            return from_arrow(list(zip(paths, (schema for _, schema in self._findings.schemas), strict=True)))
        return from_json(self._findings.json_types)

    def _write_spec(self, carried: CarriedSchema) -> WriteSpec:
        batch_model = self._spec.job.model.known_as if self._spec.is_batch else None
        return WriteSpec(
            spill_dir=self._spec.spill_dir,
            files=tuple(file.path for file in self._source.files),
            carried=carried,
            json_format=None if self._findings.schemas else JsonFormat(self._spec.columns, batch_model),
        )

    def _drop_duplicates(self, write: WriteSpec) -> None:
        count = self._keys.drop_duplicates()
        if count:
            first = list(islice(self._keys.duplicates(), PROBLEMS_PER_CODE))
            self._findings.add_rejected(Counter(duplicate_id=count), duplicate_problems(write, first))

    def _costs(self) -> Iterator[RowCost]:
        names = ("task", "sampled", "work", "prompt_tokens", "max_tokens", "samples", "bytes")
        for batch in self._keys.in_order():
            for task, sampled, *rest in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                yield RowCost(self._task_names[task], LANES[sampled], *rest)

    def _written(self, write: WriteSpec, shards: tuple[PlannedShard, ...]) -> Iterator[int]:
        num_parts = shards[-1].part + 1 if shards else 0
        for number in self._pool.written(write, self._parts(shards)):
            yield number
            self._tell("write", number + 1, num_parts)

    def _parts(self, shards: tuple[PlannedShard, ...]) -> Iterator[Part]:
        rows = _Rows(self._keys.in_order())
        for number, members in groupby(shards, key=lambda shard: shard.part):
            part = list(members)
            counts = tuple(shard.num_rows for shard in part)
            chunk, row = rows.take(sum(counts))
            yield Part(number, part[0].shard, counts, chunk, row)

    def _plan(self, carried: CarriedSchema, shards: tuple[PlannedShard, ...]) -> Plan:
        job, found = self._spec.job, self._findings
        sources = [file.identity() for file in self._source.files]
        fingerprint = fingerprint_of(job, sources, self._spec.model_folder, self._spec.chat_template)
        counts = count_groups(shards)
        return Plan(
            plan_hash=self._hash(fingerprint, carried),
            run="",
            job=job.model_dump(mode="json"),
            fingerprint=fingerprint,
            sources=sources,
            shards=shards,
            carried=carried.schema,
            json_columns=sorted(carried.as_json),
            counts=counts,
            rejected=dict(sorted(found.rejected.items())),
            problems=tuple(self._problem(problem) for problem in found.problems),
            num_cut=dict(sorted(found.num_cut.items())),
            token_histogram=self._keys.token_histogram(),
            first_prompts=dict(sorted(found.first_prompts.items())),
            defaults={name: defaults_of(job, task) for name, task in sorted(self._tasks.items())},
            warnings=(*self._source.warnings, *carried.warnings, *self._idle_tasks(counts)),
            longest_request_tokens=self._keys.longest_request(),
            max_model_len=self._spec.max_model_len,
        )

    def _hash(self, fingerprint: dict[str, str], carried: CarriedSchema) -> str:
        bounds = shard_bounds(self._spec.job)
        parts: list[Any] = [
            PLAN_VERSION,
            sorted(fingerprint.items()),
            schema_text(carried.schema),
            bounds.work,
            bounds.rows,
        ]
        return hashlib.sha256(json.dumps(parts).encode() + self._keys.digest()).hexdigest()[:16]

    def _problem(self, problem: RowProblem) -> Problem:
        return Problem(self._source.files[problem.file].path, problem.line, problem.code, problem.message)

    def _idle_tasks(self, counts: tuple[GroupCount, ...]) -> list[str]:
        used = {count.task for count in counts}
        idle = [name for name in self._spec.job.tasks if name not in used]
        return [f"tasks.{name} has no rows; rows choose a task by source.columns.task (`task`)" for name in idle]


class _Rows:
    """The places of the rows in the plan's order, taken piece by piece."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._chunk = np.empty(0, dtype=np.int32)
        self._row = np.empty(0, dtype=np.int32)

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        while len(self._chunk) < count:
            batch = next(self._batches)
            self._chunk = np.concatenate([self._chunk, batch.column("chunk").to_numpy()])
            self._row = np.concatenate([self._row, batch.column("row").to_numpy()])
        chunk, self._chunk = self._chunk[:count], self._chunk[count:]
        row, self._row = self._row[:count], self._row[count:]
        return chunk, row


def shard_bounds(job: Job) -> ShardBounds:
    """How much one shard holds: `shard.target_seconds` of work at `shard.tokens_per_second`."""
    speed = job.shard.tokens_per_second or (GPU_TOKENS_PER_SECOND if _on_gpu(job) else CPU_TOKENS_PER_SECOND)
    return ShardBounds(work=max(1, round(job.shard.target_seconds * speed)), rows=job.shard.max_rows)


def _on_gpu(job: Job) -> bool:
    if job.engine.device != "auto" or job.cluster.num_gpus is not None:
        return job.engine.device == "cuda" or bool(job.cluster.num_gpus)
    import torch  # seconds to load, and only an `auto` needs to ask it

    return torch.cuda.is_available()


def count_groups(shards: tuple[PlannedShard, ...]) -> tuple[GroupCount, ...]:
    """The shards summed by task and lane, in the plan's order."""
    groups = ((key, list(members)) for key, members in groupby(shards, key=lambda shard: (shard.task, shard.lane)))
    return tuple(
        GroupCount(
            task,
            lane,
            num_rows=sum(shard.num_rows for shard in members),
            num_samples=sum(shard.num_samples for shard in members),
            prompt_tokens=sum(shard.prompt_tokens for shard in members),
            max_output_tokens=sum(shard.max_output_tokens for shard in members),
            num_shards=len(members),
        )
        for (task, lane), members in groups
    )


def defaults_of(job: Job, task: Task) -> dict[str, Any]:
    """What applies to a row of the task that says nothing itself."""
    return {
        **task.sampling.model_dump(mode="json"),
        "seed": job.seed if task.sampling.seed is None else task.sampling.seed,
        "draft": job.draft_policy(task).model_dump(mode="json"),
        "too_long": task.too_long,
        "deadline_s": task.deadline_s,
    }
