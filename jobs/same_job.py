"""A run holds the output of one job."""

from __future__ import annotations

import shlex

from configs.errors import RunConflict
from configs.fingerprint import diff
from configs.job import Job
from jobs.run_folder import RunFolder
from pipeline.plan import current_fingerprint
from pipeline.run_state import RunView


def refuse_changed_job(job: Job, folder: RunFolder, view: RunView) -> None:
    """A run holds the output of one job: another temperature, template or source is another run.

    Raises:
        RunConflict: naming each difference, old -> new, and what to type.
    """
    changes = diff(view.plan.fingerprint, current_fingerprint(job))
    if changes:
        listed = "\n".join(f"  {line}" for line in changes)
        raise RunConflict(
            f"{folder.run} was planned with another job:\n{listed}\n"
            f"its rows and new ones would not belong together; start a new run with --new-run, "
            f"or go on with the old job: draftfleet resume {shlex.quote(folder.store.url)}"
        )
