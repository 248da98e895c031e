"""A run holds the output of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from configs.errors import RunConflict, SourceError, StorageError
from configs.fingerprint import diff
from configs.job import Job
from jobs.resume_command import resume_command
from jobs.run_folder import RunFolder
from pipeline.plan import current_fingerprint
from pipeline.run_state import RunView
from pipeline.source.opening import open_source


def refuse_changed_job(job: Job, folder: RunFolder, view: RunView, as_planned: bool = False) -> None:
    """A run holds the output of one job: another temperature, template or source is another run.

    `as_planned`: the source's files do not count, since the plan holds every row.

    Raises:
        RunConflict: naming each difference, old -> new, and what to type.
    """
    sources = view.plan.sources if as_planned else None
    changes = diff(view.plan.fingerprint, current_fingerprint(job, sources=sources))
    if changes:
        listed = "\n".join(f"  {line}" for line in changes)
        raise RunConflict(
            f"{folder.run} was planned with another job:\n{listed}\n"
            f"its rows and new ones would not belong together; start a new run with --new-run, "
            f"or go on with the old job: {resume_command(view)}"
        )


def changed_sources(job: Job, view: RunView) -> Iterator[str]:
    """A line that names the source's files that are not what they were when the run was planned, if there are any."""
    try:
        now = {_version(file.identity()) for file in open_source(job, Path.cwd()).files}
    except (SourceError, StorageError):
        now = set()
    changed = sorted({path for path, _, _ in now ^ {_version(source) for source in view.plan.sources}})
    if changed:
        more = f" (and {len(changed) - 1:,} other files)" if len(changed) > 1 else ""
        is_there = any(path == changed[0] for path, _, _ in now)
        what = "has changed since the plan" if is_there else "can no longer be read"
        yield f"{changed[0]}{more} {what}; the run goes on with the rows as they were planned"


def _version(source: Mapping[str, object]) -> tuple[str, object, object]:
    return str(source["path"]), source["size"], source["etag"]
