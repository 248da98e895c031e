"""Arguments that several verbs share, so that they are spelt and explained once."""

from __future__ import annotations

import click

job_argument = click.argument("job", metavar="JOB")
"""The path of a job file, as `job: str`; `configs.load.load_job` reads it and tells what is wrong."""

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace one value of the job, e.g. tasks.code.sampling.temperature=0.2; may be repeated.",
)
"""Dotted overrides, as `overrides: tuple[str, ...]`."""

run_option = click.option("--run", "run", metavar="RUN", help="A run's folder or name; default: the latest run.")
"""Which run, as `run: str | None`."""

run_argument = click.argument("run", metavar="[RUN]", required=False)
"""Which run, as `run: str | None`: an id, a folder, an s3:// URL or a job file; none is the latest."""

root_option = click.option(
    "--root", metavar="FOLDER", help="Folder or s3:// URL that runs lie in; default: $DRAFTFLEET_ROOT, else output."
)
"""Where ids of runs are looked up, as `root: str | None`."""

takeover_option = click.option(
    "--takeover", is_flag=True, help="Take the run from a driver whose heartbeat has stopped; it must be dead."
)
"""As `takeover: bool`; refused while the heartbeat is fresh."""
