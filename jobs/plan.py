"""`draftfleet plan`: check every row and cut the work into shards, before any engine exists."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from configs.job import DraftPolicy, Job
from configs.load import load_job
from jobs.options import job_argument, set_option
from jobs.progress import duration
from jobs.run_folder import RunFolder, choose_run
from jobs.same_job import refuse_changed_job
from jobs.same_path import refuse_output_over_input
from pipeline.error_rate import refuse_hopeless
from pipeline.plan import Plan, PlanProgress, make_plan
from pipeline.run_state import look
from workers.models import resolve

BAR_WIDTH = 40
DRAW_PERIOD_S = 0.5


@click.command()
@job_argument
@set_option
@click.option("--dry-run", is_flag=True, help="Check and report only: write nothing.")
@click.option("--run", "key", metavar="KEY", help="Name of the run: a date, a number; default: the latest, else 1.")
@click.option("--new-run", is_flag=True, help="Plan a new run beside those that exist.")
@click.option("--limit", type=click.IntRange(1), help="Read only the first rows of the source.")
def command(
    job: str, overrides: tuple[str, ...], dry_run: bool, key: str | None, new_run: bool, limit: int | None
) -> int:
    """Check every row of JOB, report each problem with its file and line, and write the plan that `run` will follow.

    Exits with 3 if more rows cannot be used than limits.max_error_rate allows: `run` would refuse to start.
    """
    loaded = load_job(Path(job), overrides).limited(limit)
    refuse_output_over_input(loaded)
    folder = None if dry_run else choose_run(loaded, key, new_run)
    planned = look(folder.store) if folder is not None else None
    if folder is not None and planned is not None:
        refuse_changed_job(loaded, folder, planned)
    plan = make(loaded, folder) if planned is None else planned.plan
    click.echo("\n".join([*problems(plan), *prompts(plan), *summary(plan)]))
    if folder is None:
        click.echo("dry run: nothing was written")
    else:
        same = [f"--set={each}" for each in overrides]
        same += [f"--run={key}"] if key is not None else []
        same += [f"--limit={limit}"] if limit is not None else []
        generate = shlex.join(["draftfleet", "run", job, *same])
        click.echo(f"planned {folder.run} in {folder.store.url}; generate with: {generate}")
    refuse_hopeless(plan.rejected, plan.num_samples, loaded.limits.max_error_rate)
    return 0


def make(job: Job, folder: RunFolder | None) -> Plan:
    """Plan a job into a run's folder (None: nowhere), showing how far it is on a terminal."""
    drawn_at = 0.0

    def draw(progress: PlanProgress) -> None:
        nonlocal drawn_at
        if sys.stderr.isatty() and time.monotonic() - drawn_at > DRAW_PERIOD_S:
            drawn_at = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{_stage(progress)}")
            sys.stderr.flush()

    started = time.monotonic()
    plan = make_plan(job, Path.cwd(), resolve(job.model.path), folder.store if folder else None, draw)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    click.echo(f"checked {plan.num_rows + plan.num_rejected:,} rows in {duration(time.monotonic() - started)}")
    return plan


def _stage(progress: PlanProgress) -> str:
    if progress.stage == "rows":
        share = f" ({min(1.0, progress.num_bytes / progress.total_bytes):.0%})" if progress.total_bytes else ""
        rejected = f", {progress.num_rejected:,} rejected" if progress.num_rejected else ""
        return f"checking rows: {progress.num_rows:,}{share}{rejected}"
    if progress.stage == "write":
        return f"writing shards: part {progress.parts_written:,}/{progress.num_parts:,}"
    return f"{progress.stage} …"


def summary(plan: Plan) -> Iterator[str]:
    """What will run: counts per task and lane, prompt lengths, what applies, shards, warnings."""
    yield f"{plan.num_rows:,} rows, {plan.num_samples:,} samples, {len(plan.shards):,} shards"
    for count in plan.counts:
        yield (
            f"  {count.task} ({count.lane}): {count.num_rows:,} rows, {count.num_samples:,} samples, "
            f"{count.prompt_tokens:,} prompt tokens, up to {count.max_output_tokens:,} output tokens, "
            f"{count.num_shards:,} shards"
        )
        yield f"    {_defaults(plan, count.task)}"
    yield from histogram(plan)
    for task, rows in plan.num_cut.items():
        yield f"  {task}: {rows:,} prompts cut to fit {plan.max_model_len:,} tokens"
    for warning in plan.warnings:
        yield f"  warning: {warning}"
    if plan.num_rejected:
        codes = ", ".join(f"{code} {rows:,}" for code, rows in plan.rejected.items())
        yield f"  {plan.num_rejected:,} rows rejected ({codes})"


def _defaults(plan: Plan, task: str) -> str:
    """`rows that say nothing get: temperature 0.0, max_tokens 96, …, drafts by ngram, K by what pays`"""
    applies = dict(plan.defaults.get(task, {}))
    draft = applies.pop("draft", {})
    shown = ", ".join(f"{name} {value}" for name, value in applies.items() if not _says_nothing(value))
    return f"rows that say nothing get: {shown}, {_drafting(DraftPolicy.model_validate(draft))}"


def _drafting(policy: DraftPolicy) -> str:
    drafters = " or ".join(policy.candidates("none"))
    shortest, longest = policy.bounds
    if longest == 0 or not drafters:
        return "no drafts"
    return f"drafts by {drafters}, K {shortest}" if shortest == longest else f"drafts by {drafters}, K as it pays"


def _says_nothing(value: Any) -> bool:
    """Unset; 0 is a value, though Python finds it equal to False."""
    return value is None or value is False or value == []


def histogram(plan: Plan) -> Iterator[str]:
    """Prompt lengths, a bar per power of two."""
    most = max(plan.token_histogram.values(), default=0)
    if most:
        yield "  prompt tokens:"
    for upper, rows in sorted(plan.token_histogram.items()):
        yield f"  {'≤ ' + format(upper, ','):>9} {'█' * max(1, round(BAR_WIDTH * rows / most))} {rows:,}"


def prompts(plan: Plan) -> Iterator[str]:
    """The first rendered prompt of each task, as the model sees it."""
    for task, prompt in plan.first_prompts.items():
        yield f"── first prompt of {task} "
        yield textwrap.indent(prompt if len(prompt) <= 2000 else prompt[:2000] + " …", "  ")


def problems(plan: Plan) -> Iterator[str]:
    """Rejected rows: file, line, code, reason; the first few of each code, all of them in the rejected table."""
    for problem in plan.problems:
        yield f"{problem.file}:{problem.line}: {problem.code}: {problem.message}"
    unseen = plan.num_rejected - len(plan.problems)
    if unseen > 0:
        yield f"… and {unseen:,} more; all are in errors/rejected.parquet once the run starts"
