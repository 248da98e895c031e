"""`draftfleet status`: how far a run is, read from its objects alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from jobs.options import root_option, run_argument
from jobs.progress import duration
from jobs.resume_command import resume_command
from jobs.run_folder import find_run
from pipeline.finalize import rejected_usage
from pipeline.footer import read_footers
from pipeline.pulse import engine_snapshots, read_pulse
from pipeline.recheck import Recheck, sum_of
from pipeline.run_state import RunView, open_run
from pipeline.saving import saving_of
from pipeline.usage import Usage
from workers.draft_length.comparison import Comparison


@click.command()
@run_argument
@root_option
def command(run: str | None, root: str | None) -> int:
    """How far RUN is: a run's id, folder or s3:// URL, or a job file; default: the latest run. Needs no cluster."""
    folder = find_run(run, root)
    view = open_run(folder.store)
    click.echo(headline(folder.run, view))
    for line in details(view):
        click.echo(f"  {line}")
    return 0


def headline(run: str, view: RunView) -> str:
    """`demo-1: interrupted, last heartbeat 74 s ago, resume: draftfleet resume …`"""
    text = f"{run}: {view.state.replace('_', ' ')}"
    if view.lease is not None and view.manifest is None:
        text += f", last heartbeat {view.lease.heartbeat_age_s:.0f} s ago"
        text += f" by {view.lease.owner}" if view.state == "running" else ""
    if view.state == "planned":
        text += f", start: {resume_command(view)}"
    if view.state in ("interrupted", "cancelled", "failed") and not view.is_complete:
        text += f", resume: {resume_command(view)}"
    if failed_in_engines(view) > 0:
        text += f", try what failed again: {resume_command(view, '--retry-errors')}"
    return text


def failed_in_engines(view: RunView) -> int:
    """Of a complete run, the samples that had a prompt and failed."""
    if view.manifest is None:
        return 0
    return int(view.manifest["usage"]["samples_error"]) - view.plan.num_rejected


def details(view: RunView) -> list[str]:
    """The counters, honest: samples ok, errors by code, truncated, empty."""
    footers = list(read_footers(view.store, view.data_keys))
    usage = sum((footer.usage for footer in footers), rejected_usage(view))
    rechecked = sum_of(*(footer.recheck for footer in footers))
    total = view.plan.num_samples + sum(view.plan.rejected.values())
    lines = [
        f"{usage.samples:,}/{total:,} samples done in {len(view.done):,}/{len(view.plan.shards):,} shards",
        *counters(usage),
    ]
    if view.state == "running" and view.lease is not None:
        pulse = read_pulse(view.store, view.lease.owner.attempt)
        lines.append(f"{pulse.heard} engines, last heard {max(0.0, time.time() - pulse.updated):.0f} s ago")
        lines.append(str(view.lease.progress.get("line", "starting")))
    else:
        snapshots = engine_snapshots(view.store)
        rechecked_ns = rechecked["engine_ns"] if rechecked else 0
        lines += [*unclaimed(snapshots, usage, rechecked_ns), *saved(snapshots)]
        lines += [f"recheck: {Recheck.from_json(rechecked)}"] if rechecked else []
    return [*lines, view.store.url]


def saved(snapshots: Sequence[Mapping[str, Any]]) -> list[str]:
    """What drafting saved, where anything was drafted."""
    if not any(snapshot["work"]["draft_tokens"] for snapshot in snapshots):
        return []
    measured = [Comparison.from_json(each) for snapshot in snapshots for each in snapshot.get("comparisons", ())]
    saving = saving_of(measured)
    return [f"drafting: {saving or f'not measured against plain decoding ({len(measured)} blocks)'}"]


def unclaimed(snapshots: Sequence[Mapping[str, Any]], usage: Usage, rechecked_ns: int = 0) -> list[str]:
    """Work that kills and early ends cost: rounds that no committed shard claims, rechecks apart."""
    busy_ns = sum(snapshot["seconds_ns"]["busy"] for snapshot in snapshots)
    lost_s = (busy_ns - usage.engine_ns_ok - usage.engine_ns_error - rechecked_ns) / 1e9
    if lost_s < 0.05:
        return []
    return [f"{lost_s:,.1f} s of engine time, by {len(snapshots):,} engines, are in no committed shard"]


def counters(usage: Usage) -> list[str]:
    """A run's totals in words."""
    errors = ", ".join(f"{code} {count:,}" for code, count in sorted(usage.errors.items(), key=lambda item: -item[1]))
    lines = [
        f"{usage.samples_ok:,} ok, {usage.samples_error:,} errors" + (f" ({errors})" if errors else ""),
        f"{usage.samples_length:,} ended by max_tokens, {usage.samples_empty:,} empty"
        + (f", {usage.samples_lossy:,} LOSSY (acceptance: threshold)" if usage.samples_lossy else ""),
        f"{usage.prompt_tokens:,} prompt tokens, {usage.output_tokens:,} output tokens"
        + (f", {usage.truncated_tokens:,} more dropped beyond a stop" if usage.truncated_tokens else ""),
    ]
    engine_s = (usage.engine_ns_ok + usage.engine_ns_error) / 1e9
    if engine_s and usage.output_tokens:
        lines.append(
            f"{duration(engine_s)} engine time, {usage.output_tokens / engine_s:,.0f} output tokens per engine-second"
        )
    stats = usage.speculation
    if stats.draft_acceptance_rate is not None and stats.mean_acceptance_length is not None:
        share = f"{stats.draft_acceptance_rate:.0%} of {stats.num_draft_tokens:,} drafts accepted"
        rounds = f"{stats.num_spec_steps:,} of {stats.num_rounds:,} rounds"
        lines.append(f"speculation: {share}, mean acceptance length {stats.mean_acceptance_length:.2f} over {rounds}")
    return lines
