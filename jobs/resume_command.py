"""The command that goes on with a run, as it is typed."""

from __future__ import annotations

import shlex

from configs.job import Storage
from pipeline.run_state import RunView


def resume_command(view: RunView, *options: str) -> str:
    """`draftfleet resume s3://bucket/runs/w-1`, with --takeover if it is needed, and what else may lead to the run."""
    takeover = ["--takeover"] if view.lease is not None and view.lease.expired and not view.lease.gone else []
    url, verb = view.store.url, ["draftfleet", "resume", *options, *takeover]
    storage = Storage.model_validate(view.plan.job["storage"])
    needed = storage.endpoint_url or (f"the profile {storage.profile}" if storage.profile else None)
    if needed is None or "://" not in url:
        return shlex.join([*verb, url])
    by_job = shlex.join([*verb, "JOB.yaml"])
    return f"{shlex.join([*verb, url])} (where AWS_* variables do not lead to {needed}: {by_job})"
