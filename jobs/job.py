"""`draftfleet job`: what a job says, or what a job can say."""

from __future__ import annotations

import click

from configs.load import describe, load_job
from configs.reference import reference
from jobs.options import set_option


@click.command()
@click.argument("job", required=False, metavar="[JOB]")
@set_option
def command(job: str | None, overrides: tuple[str, ...]) -> None:
    """Print JOB with every default written out and every value explained; it is a job file again.

    Without JOB: the reference of all keys, in Markdown, as in docs/job.md.
    """
    if job is None and overrides:
        raise click.UsageError("--set needs a JOB whose values it replaces")
    click.echo(reference() if job is None else describe(load_job(job, overrides)), nl=False)
