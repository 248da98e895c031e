"""The end of a run: nothing is missing, so its counters are final and what nobody refers to can go."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from configs.errors import RunFailed, StorageError
from pipeline.footer import ShardFooter, read_footers
from pipeline.layout import ERRORS_DIR, MANIFEST, REJECTED_KEY, data_key
from pipeline.run_state import RunView, State
from pipeline.schema import SCHEMA_VERSION
from pipeline.usage import Usage


def outcome(usage: Usage, max_error_rate: float) -> State:
    """The final state of a run whose shards are all committed; `usage` includes the rejected rows."""
    if usage.samples_error == 0:
        return "completed"
    return "failed" if usage.samples_error > max_error_rate * usage.samples else "completed_with_errors"


def finalize(view: RunView, max_error_rate: float) -> dict[str, Any]:
    """Write `_manifest.json` and remove error objects that no footer names. Safe to repeat.

    `max_error_rate` decides which state the errors make of the run.

    Returns:
        the manifest.

    Raises:
        RunFailed: shards are missing, though all were committed.
    """
    if view.pending:
        first = view.pending[0]
        raise RunFailed(
            f"{data_key(first.task, first.shard)} is missing at the end of the run ({len(view.pending):,} shards are); "
            "who deletes there? `draftfleet resume` makes them again"
        )
    footers = list(read_footers(view.store, view.data_keys))
    usage = sum((footer.usage for footer in footers), rejected_usage(view))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "run": view.plan.run,
        "workload": view.plan.job["workload"],
        "state": outcome(usage, max_error_rate),
        "plan": view.plan.plan_hash,
        "semantic_fingerprint": view.plan.fingerprint_hash,
        "finished": time.time(),
        "num_shards": len(footers),
        "attempts": sorted({footer.attempt for footer in footers}),
        "usage": usage.to_json(),
        "usage_by_task": {task: usage.to_json() for task, usage in usage_by_task(footers).items()},
        "data": [
            {"key": key, "rows": footer.usage.samples_ok} for key, footer in zip(view.data_keys, footers, strict=True)
        ],
        "errors": _error_keys(view, footers),
    }
    view.store.put(MANIFEST, json.dumps(manifest, indent=1).encode())
    _sweep(view, set(manifest["errors"]))
    return manifest


def rejected_usage(view: RunView) -> Usage:
    """The rows that failed while planning, as errors of one sample each."""
    return sum((Usage.of_error(code, samples=count) for code, count in view.plan.rejected.items()), Usage())


def usage_by_task(footers: list[ShardFooter]) -> dict[str, Usage]:
    totals: dict[str, Usage] = {}
    for footer in footers:
        totals[footer.task] = totals.get(footer.task, Usage()) + footer.usage
    return dict(sorted(totals.items()))


def _error_keys(view: RunView, footers: list[ShardFooter]) -> list[str]:
    keys = [footer.errors_key for footer in footers if footer.errors_key]
    return ([REJECTED_KEY] if view.plan.rejected else []) + keys


def _sweep(view: RunView, named: set[str]) -> None:
    """Error objects of engines that lost the race for their shard. The run is complete without it."""
    with contextlib.suppress(StorageError):
        for stat in list(view.store.list(ERRORS_DIR)):
            if stat.key not in named:
                view.store.delete(stat.key)
