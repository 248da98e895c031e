"""The ok rows of an earlier run as a source: `run:<id>`, `run:<folder>` or `run:s3://...`.

    row_id -> id          unique also where a row had several samples
    text   -> input_text  the earlier answer; templates may say `text`
    id     -> input_id    the earlier row, to group its samples
    task   -> input_task  and the row's task, if the job has one of that name
    the user's columns    as they are

The earlier run's statistics are dropped, and sampling columns that it carried do not apply again. The user's own
`source.rename` goes before these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.errors import SourceError
from configs.job import Job
from pipeline.layout import CURRENT, DATA_DIR, MANIFEST
from pipeline.planning.carried import free_name
from pipeline.schema import OUTPUT_NAMES, RESERVED_NAMES
from pipeline.source.column_map import ColumnMap
from pipeline.source.files import SourceFile, exists, find_files, open_file, without_file_scheme
from pipeline.source.parquet import parquet_columns

PREFIX = "run:"
NEW_NAMES = {"row_id": "id", "text": "input_text", "id": "input_id", "task": "input_task"}


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Where the rows lie, and which of their columns are read under which names."""

    files: tuple[SourceFile, ...]
    read: tuple[str, ...]
    columns: ColumnMap
    warnings: tuple[str, ...]


def open_earlier_run(name: str, job: Job, base_dir: Path) -> EarlierRun:
    """The run that a source path `run:<name>` means: one with a `/` is a folder or URL, else an id below `sink.path`.

    Raises:
        SourceError: no such run, none of its rows is done, or it kept no texts.
    """
    folder = without_file_scheme(name if "/" in name else _below_sink(job, name)).rstrip("/")
    if not exists(f"{folder}/{CURRENT}", base_dir, job.storage):
        raise SourceError(f"source.path run:{name}: no run in {folder}; `draftfleet runs` lists what there is")
    try:
        files = find_files(f"{folder}/{DATA_DIR}", base_dir, job.storage)
    except SourceError:
        raise SourceError(f"source.path run:{name}: no row of {folder} is done yet; finish it first") from None
    with open_file(files[0], job.storage) as stream:
        present = parquet_columns(stream, files[0].path)
    for needed in ("row_id", "text"):
        if needed not in present:
            raise SourceError(f"source.path run:{name}: its sink.columns dropped `{needed}`, which a source needs")
    done = exists(f"{folder}/{MANIFEST}", base_dir, job.storage)
    warnings = () if done else (f"run:{name} is not finished; its rows so far are read",)
    read = tuple(name for name in present if name in NEW_NAMES or name not in OUTPUT_NAMES)
    return EarlierRun(tuple(files), read, _columns(job, present), warnings)


def _below_sink(job: Job, run: str) -> str:
    root = job.sink.path
    return f"{root.rstrip('/')}/{run}" if "://" in root else str(Path.cwd() / root / run)


def _columns(job: Job, present: Sequence[str]) -> ColumnMap:
    rename = _new_names(present, job.source.rename)
    given = ColumnMap.of(job.source.columns, rename)
    return replace(given, task=given.task or rename.get("task"), overrides=False, foreign_tasks=True)


def _new_names(present: Sequence[str], asked: Mapping[str, str]) -> dict[str, str]:
    taken = {*present, *asked.values(), *RESERVED_NAMES}
    names = {"row_id": "id"}
    for old in ("text", "id", "task"):
        if old in present and old not in asked:
            names[old] = free_name(NEW_NAMES[old], taken)
            taken.add(names[old])
    return {**names, **asked}
