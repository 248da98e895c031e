"""`draftfleet preview`: a few rows per task to the screen, in this process; no run, no Ray."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pyarrow as pa
import torch
from torch._C._profiler import _ExperimentalConfig

from configs.job import Job
from configs.load import load_job
from jobs.machine import local_threads
from jobs.options import job_argument, set_option
from jobs.plan import make, problems
from jobs.run_folder import RunFolder
from jobs.show import answer
from pipeline.plan import Plan, read_planned
from pipeline.shard_tables import error_table, output_table
from pipeline.shard_work import Sample, generate_shard
from pipeline.store.local import LocalStore
from workers.factory import create_engine

ROWS_READ = 1000
"""Rows that are planned to choose from; a preview must not wait for a large source."""


@click.command()
@job_argument
@set_option
@click.option("--profile", type=click.Path(path_type=Path, dir_okay=False), help="Write a torch.profiler trace there.")
@click.option("-n", "rows_per_task", type=click.IntRange(1), default=5, show_default=True, help="Rows of each task.")
def command(job: str, overrides: tuple[str, ...], rows_per_task: int, profile: Path | None) -> int:
    """Generate the first -n rows of each task of JOB and print them; nothing is kept."""
    loaded = load_job(Path(job), overrides)
    with tempfile.TemporaryDirectory(prefix="draftfleet-preview-") as scratch:
        store = LocalStore(scratch)
        plan = make(loaded.limited(ROWS_READ), RunFolder("preview", store))
        click.echo("\n".join(problems(plan)), nl=bool(plan.problems))
        tables = [rows for rows in first_rows(store, plan, rows_per_task) if rows.num_rows]
        for rows, samples in asyncio.run(_generate(loaded, plan, tables, profile)):
            show(rows, samples)
    return 0


def first_rows(store: LocalStore, plan: Plan, rows_per_task: int) -> Iterator[pa.Table]:
    """Per task the rows that come first in the source, as plan rows."""
    for task in sorted({shard.task for shard in plan.shards}):
        shards = [read_planned(store, plan.plan_hash, shard) for shard in plan.shards if shard.task == task]
        yield pa.concat_tables(shards).sort_by("_ordinal").slice(0, rows_per_task)


async def _generate(
    job: Job, plan: Plan, tables: list[pa.Table], profile: Path | None
) -> list[tuple[pa.Table, list[Sample]]]:
    engine = create_engine(
        job.model,
        job.draft,
        job.engine,
        longest_request_tokens=plan.longest_request_tokens,
        threads=local_threads(job),
    )
    try:
        with traced(profile):
            done = await asyncio.gather(*(generate_shard(engine, job, rows) for rows in tables))
    finally:
        await engine.close()
    return list(zip(tables, done, strict=True))


@contextmanager
def traced(file: Path | None) -> Iterator[None]:
    """Record what the engine does, to be looked at in https://ui.perfetto.dev; nothing without a file."""
    if file is None:
        yield
        return
    # The engine has a thread of its own.
    with torch.profiler.profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiler:
        yield
    profiler.export_chrome_trace(str(file))
    click.echo(f"trace: {file}")


def show(rows: pa.Table, samples: list[Sample]) -> None:
    """Print answers, then errors."""
    for row in output_table(rows, samples, None, False).to_pylist():
        click.echo(answer(row))
    for row in error_table(rows, samples, attempt=1).to_pylist():
        click.echo(f"── {row['task']} · {row['row_id']}: {row['error']['code']}: {row['error']['message']}")
