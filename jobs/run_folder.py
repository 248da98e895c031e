"""Which run is meant: names, folders and URLs of runs, and the latest where none is named.

A run's folder is `<sink.path>/<workload>-<key>`. The key is `1`, `2`, … unless the user gives one (a date, a name).
RUN on the command line is a job file (its latest run), a run's folder or s3:// URL, or a run's id below --root.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from configs.errors import UsageError
from configs.job import Job, Storage
from configs.load import load_job
from pipeline.layout import CURRENT
from pipeline.store.base import NotFound, Store
from pipeline.store.open import open_answering, open_store

KEY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")
DEFAULT_ROOT = "output"
ROOT_VARIABLE = "DRAFTFLEET_ROOT"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run by its id, and the store of its folder."""

    run: str
    store: Store

    @property
    def planned_at(self) -> float | None:
        """When its plan was fixed; None if there is none."""
        try:
            return self.store.head(CURRENT).modified
        except NotFound:
            return None

    def reached_by(self, storage: Storage) -> RunFolder:
        """The same run through its job's settings: by its URL it was found with AWS_* variables alone.

        Raises:
            StorageError: with them the store does not answer.
        """
        if "://" not in self.store.url:
            return self
        return RunFolder(self.run, open_answering(self.store.url, storage))


def root_store(root: str | None, storage: Storage | None = None) -> Store:
    """The folder that runs lie in: the argument, $DRAFTFLEET_ROOT, or `output`."""
    return open_answering(root or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT, storage or Storage())


def runs_below(root: Store) -> list[RunFolder]:
    """Every planned run of a folder, the latest plan last."""
    folders = [RunFolder(name, root.child(name)) for name in root.children()]
    planned = [(at, folder.run, folder) for folder in folders if (at := folder.planned_at) is not None]
    return [folder for _, _, folder in sorted(planned, key=lambda item: item[:2])]


def runs_of(job: Job, root: Store) -> list[RunFolder]:
    """The runs of a job's workload, the latest last. A longer workload name with the same start is not one."""
    prefix = f"{job.workload}-"
    return [folder for folder in runs_below(root) if folder.run.startswith(prefix) and _is_of(job, folder)]


def _is_of(job: Job, folder: RunFolder) -> bool:
    from pipeline.plan import load_plan

    plan = load_plan(folder.store)
    return plan is not None and plan.job["workload"] == job.workload


def choose_run(job: Job, key: str | None, new: bool) -> RunFolder:
    """The folder that `run` works in: the named key, a new one, or the workload's latest.

    Raises:
        UsageError: the key cannot be a name.
        StorageError: `sink.path` cannot be written; looked at first, because the check alone tells within seconds.
    """
    root = open_store(job.sink.path, job.storage)
    root.check()
    if key is not None:
        return RunFolder(run_id(job, key), root.child(run_id(job, key)))
    existing = runs_of(job, root)
    if existing and not new:
        return existing[-1]
    name = run_id(job, next_key(job, [folder.run for folder in existing]))
    return RunFolder(name, root.child(name))


def run_id(job: Job, key: str) -> str:
    if not KEY.match(key):
        raise UsageError(f"{key!r} cannot be a run's name: use letters, digits, '.', '_' and '-'")
    return f"{job.workload}-{key}"


def next_key(job: Job, runs: list[str]) -> str:
    """One more than the highest numbered run."""
    keys = (run.removeprefix(f"{job.workload}-") for run in runs)
    return str(1 + max((int(key) for key in keys if key.isdecimal()), default=0))


def find_run(run: str | None, root: str | None) -> RunFolder:
    """The run that a reading verb is about.

    Raises:
        UsageError: there is no such run; the message says where was looked.
    """
    if run is not None and run.endswith((".yaml", ".yml")):
        return _latest_of_job(load_job(Path(run), ()))
    if run is not None and ("://" in run or Path(run).is_dir()):
        store = open_answering(run, Storage())
        return RunFolder(store.url.rstrip("/").rpartition("/")[2], store)
    below = root_store(root)
    if run is not None:
        folder = RunFolder(run, below.child(run))
        if folder.planned_at is None:
            raise UsageError(
                f"no run {run} in {below.url}; `draftfleet runs` lists what there is, --root looks elsewhere"
            )
        return folder
    existing = runs_below(below)
    if not existing:
        raise UsageError(f"no runs in {below.url}; start one with `draftfleet run JOB`, or look elsewhere with --root")
    return existing[-1]


def _latest_of_job(job: Job) -> RunFolder:
    root = open_answering(job.sink.path, job.storage)
    existing = runs_of(job, root)
    if not existing:
        raise UsageError(f"no run of {job.workload} in {root.url}; start one with `draftfleet run`")
    return existing[-1]
