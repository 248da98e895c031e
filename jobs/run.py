"""`draftfleet run`: plan and generate; over an unfinished run resume it, over a finished one show it."""

from __future__ import annotations

from pathlib import Path

import click

from configs.job import Job
from configs.load import load_job
from jobs.driver import EXIT_CODES, drive
from jobs.machine import refuse_missing_gpu, refuse_unfit_head
from jobs.options import job_argument, set_option, takeover_option
from jobs.plan import make, problems, summary
from jobs.run_folder import RunFolder, choose_run
from jobs.same_job import refuse_changed_job
from jobs.same_path import refuse_output_over_input
from jobs.show import show
from pipeline.run_state import look, open_run


@click.command()
@job_argument
@set_option
@click.option("--run", "key", metavar="KEY", help="Name of the run: a date, a number; default: the latest, else 1.")
@click.option("--new-run", is_flag=True, help="Start a new run beside those that exist.")
@click.option("--limit", type=click.IntRange(1), help="Read only the first rows of the source.")
@takeover_option
@click.option("-n", "answers", type=click.IntRange(0), default=0, help="Answers to show at the end.")
def command(
    job: str,
    overrides: tuple[str, ...],
    key: str | None,
    new_run: bool,
    limit: int | None,
    takeover: bool,
    answers: int,
) -> int:
    """Run JOB: check every row, then generate. Run it again to go on where it stopped, or to see the result again."""
    loaded = load_job(Path(job), overrides)
    if limit is not None:
        loaded = loaded.model_copy(update={"source": loaded.source.model_copy(update={"limit": limit})})
    refuse_output_over_input(loaded)
    return run(loaded, choose_run(loaded, key, new_run), answers, takeover)


def run(job: Job, folder: RunFolder, answers: int, takeover: bool = False, retry_errors: bool = False) -> int:
    """Bring a run as far as it goes, and return the exit code of the state that it is left in."""
    view = look(folder.store)
    if view is None:
        refuse_missing_gpu(job)
        refuse_unfit_head(job)
        click.echo(f"planning {folder.run} in {folder.store.url}")
        make(job, folder)
        view = open_run(folder.store)
        click.echo("\n".join([*problems(view.plan), *summary(view.plan)]))
    else:
        refuse_changed_job(job, folder, view)
    if retry_errors or not view.is_complete:
        if view.done:
            click.echo(f"resuming {folder.run}, {view.samples_done:,}/{view.plan.num_samples:,} done")
        drive(job, folder.store, folder.run, takeover, retry_errors)
        view = open_run(folder.store)
    show(folder.run, view, answers)
    return EXIT_CODES.get(view.state, 1)
