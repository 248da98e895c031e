"""`draftfleet resume`: go on with an unfinished run as it was planned."""

from __future__ import annotations

import click

from configs.job import Job
from configs.load import override_job
from jobs.options import root_option, run_argument, set_option, takeover_option
from jobs.run import run as go_on
from jobs.run_folder import find_run
from pipeline.run_state import open_run


@click.command()
@run_argument
@root_option
@set_option
@takeover_option
@click.option("--retry-errors", is_flag=True, help="Also try the samples again that failed in an engine.")
@click.option("-n", "answers", type=click.IntRange(0), default=0, help="Answers to show at the end.")
def command(
    run: str | None, root: str | None, overrides: tuple[str, ...], takeover: bool, retry_errors: bool, answers: int
) -> int:
    """Go on with RUN as it was planned; neither the job file nor the source is needed.

    --set may change how it runs (engine, cluster, limits, sink.compression, storage), not what it generates.
    --retry-errors replaces failed samples only, and keeps what it replaces in _superseded/. Rows that were rejected
    while planning are not among them: mend them in the source and start a new run.
    """
    found = find_run(run, root)
    job = override_job(Job.model_validate(open_run(found.store).plan.job), overrides)
    return go_on(job, found.reached_by(job.storage), answers, takeover, retry_errors, as_planned=True)
