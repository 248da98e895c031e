"""`draftfleet stop`: ask a run's driver to end it; what is committed stays."""

from __future__ import annotations

import json
import os
import time

import click

from configs.job import Job
from configs.load import override_job
from jobs.options import root_option, run_argument, set_option
from jobs.run_folder import find_run
from pipeline.layout import STOP
from pipeline.run_state import open_run


@click.command()
@run_argument
@root_option
@set_option
@click.option("--wait", "wait_s", type=float, default=60.0, show_default=True, help="Seconds to wait for its end.")
def command(run: str | None, root: str | None, overrides: tuple[str, ...], wait_s: float) -> int:
    """Stop RUN: shards in flight are dropped, committed ones stay, and `draftfleet resume` can go on later.

    --set may change how its store is reached (storage).
    """
    found = find_run(run, root)
    view = open_run(found.store)
    folder = found.reached_by(override_job(Job.model_validate(view.plan.job), overrides).storage)
    if view.state != "running":
        click.echo(f"{folder.run} is not running: {view.state.replace('_', ' ')}")
        return 0
    folder.store.put(STOP, json.dumps({"host": os.uname().nodename, "asked": time.time()}).encode())
    click.echo(f"asked {folder.run} to stop; its driver looks every 10 seconds")
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        view = open_run(folder.store)
        if view.state != "running":
            click.echo(f"{folder.run}: {view.state}, {view.samples_done:,} samples committed")
            return 0
        time.sleep(1.0)
    click.echo(f"{folder.run} still runs after {wait_s:.0f} s; look again with `draftfleet status {folder.store.url}`")
    return 1
