"""`draftfleet runs`: the runs below a folder."""

from __future__ import annotations

import time

import click

from configs.errors import DraftfleetError
from jobs.options import root_option
from jobs.run_folder import root_store, runs_below
from pipeline.run_state import open_run


@click.command()
@root_option
def command(root: str | None) -> int:
    """List the runs below --root, the latest last."""
    store = root_store(root)
    folders = runs_below(store)
    if not folders:
        click.echo(f"no runs in {store.url}")
        return 0
    rows = [("RUN", "STATE", "SAMPLES", "PLANNED")]
    for folder in folders:
        try:
            view = open_run(folder.store)
        except DraftfleetError as error:
            click.echo(f"{folder.run}: {error}", err=True)  # one damaged run must not hide the others
            continue
        planned = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.planned_at or 0))
        rows.append((folder.run, view.state, f"{view.samples_done:,}/{view.plan.num_samples:,}", planned))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
