"""`draftfleet run`: plan and generate; over an unfinished run resume it, over a finished one show it."""

from __future__ import annotations

from pathlib import Path

import click

from configs.errors import RunConflict, StorageError
from configs.job import Job
from configs.load import load_job
from jobs.driver import EXIT_CODES, drive
from jobs.machine import refuse_missing_gpu, refuse_unfit_drafters
from jobs.options import job_argument, set_option, takeover_option
from jobs.plan import make, problems, summary
from jobs.resume_command import resume_command
from jobs.run_folder import RunFolder, choose_run
from jobs.same_job import changed_sources, refuse_changed_job
from jobs.same_path import refuse_output_over_input
from jobs.show import show
from jobs.terminated import was_terminated
from pipeline.finalize import outcome
from pipeline.lease import refusal
from pipeline.run_state import RunView, State, look, open_run
from pipeline.usage import Usage


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
    loaded = load_job(Path(job), overrides).limited(limit)
    refuse_output_over_input(loaded)
    return run(loaded, choose_run(loaded, key, new_run), answers, takeover)


def run(
    job: Job,
    folder: RunFolder,
    answers: int,
    takeover: bool = False,
    retry_errors: bool = False,
    as_planned: bool = False,
) -> int:
    """Bring a run as far as it goes, and return the exit code of the state that it is left in.

    `as_planned`: changes of the source's files are told, not refused.
    """
    view = look(folder.store)
    if view is None:
        view = _planned(job, folder)
    else:
        if has_work(job, view, retry_errors) and (reason := refusal(view.lease, takeover)):
            raise RunConflict(reason)  # at once: to compare the jobs, the whole model is read
        refuse_changed_job(job, folder, view, as_planned)
    if has_work(job, view, retry_errors):
        for line in changed_sources(job, view) if as_planned else ():
            click.echo(line)
        if view.done:
            click.echo(f"resuming {folder.run}, {view.samples_done:,}/{view.plan.num_samples:,} done")
        state = drive(job, folder.store, folder.run, takeover, retry_errors)
        _show_end(folder, view, state, answers)
        return EXIT_CODES[state]
    show(folder.run, view, answers)
    return EXIT_CODES.get(view.state, 1)


def has_work(job: Job, view: RunView, retry_errors: bool) -> bool:
    """A complete run has none, but for failed samples to be tried again, or a limit that now allows what failed."""
    if view.manifest is None or retry_errors:
        return True
    usage = Usage.from_json(view.manifest["usage"])
    return view.state == "failed" and outcome(usage, job.limits.max_error_rate) != "failed"


def _planned(job: Job, folder: RunFolder) -> RunView:
    refuse_missing_gpu(job)
    refuse_unfit_drafters(job)
    click.echo(f"planning {folder.run} in {folder.store.url}")
    make(job, folder)
    view = open_run(folder.store)
    click.echo("\n".join([*problems(view.plan), *summary(view.plan)]))
    return view


def _show_end(folder: RunFolder, view: RunView, state: State, answers: int) -> None:
    """`view`: from before. After a SIGTERM nothing more is read: who sent it waits for seconds, and a large run takes
    longer to look at."""
    if state == "interrupted" and was_terminated():
        click.echo(f"{folder.run}: interrupted, resume: {resume_command(view)}")
        return
    try:
        show(folder.run, open_run(folder.store), answers)
    except StorageError as error:
        click.echo(f"{folder.run}: {state.replace('_', ' ')}, and cannot be shown: {error}", err=True)
