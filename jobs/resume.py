"""`draftfleet resume`: go on with an unfinished run as it was planned."""

from __future__ import annotations

import click

from configs.job import Job
from configs.load import override_job
from jobs.driver import EXIT_CODES, drive
from jobs.options import root_option, run_argument, set_option, takeover_option
from jobs.run import refuse_changed_job
from jobs.run_folder import find_run
from jobs.show import show
from pipeline.run_state import FINAL, open_run, total_samples


@click.command()
@run_argument
@root_option
@set_option
@takeover_option
@click.option("-n", "answers", type=click.IntRange(0), default=0, help="Answers to show at the end.")
def command(run: str | None, root: str | None, overrides: tuple[str, ...], takeover: bool, answers: int) -> int:
    """Go on with RUN as it was planned; the job file is not needed.

    --set may change how it runs (engine, cluster, sink.compression), not what it generates.
    """
    folder = find_run(run, root)
    view = open_run(folder.store)
    job = override_job(Job.model_validate(view.plan.job), overrides)
    refuse_changed_job(job, folder, view)
    if view.state not in FINAL:
        click.echo(f"resuming {folder.run}, {view.samples_done:,}/{total_samples(view.plan.shards):,} done")
        drive(job, folder.store, folder.run, takeover)
        view = open_run(folder.store)
    show(folder.run, view, answers)
    return EXIT_CODES.get(view.state, 1)
