"""Where exported lines go: one file, or one per task. A file appears under its name when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from configs.errors import StorageError, UsageError
from pipeline.export.line import Line

NO_TASK = "_no_task"
"""The file of rows that failed before their task was known. No task is named so: names start with a letter."""
PART = ".part"


def write_lines(lines: Iterable[Line], out: Path, header: str | None, suffix: str, split_by_task: bool) -> list[Path]:
    """Write the lines to the file `out`, or to `<task><suffix>` in the folder `out`; returns the files, sorted.

    Raises:
        UsageError: `out` is a folder where a file is wanted, or the other way round.
        StorageError: the disk is full or may not be written; no file is left half-written.
    """
    _refuse_wrong_kind(out, split_by_task)
    with _told(out), contextlib.ExitStack() as stack:
        files: dict[Path, TextIO] = {}
        stack.callback(_remove_parts, files)
        if not split_by_task:
            files[out] = stack.enter_context(_open(out, header))
        for line in lines:
            path = out / f"{line.task or NO_TASK}{suffix}" if split_by_task else out
            if path not in files:
                files[path] = stack.enter_context(_open(path, header))
            files[path].write(f"{line.text}\n")
        return _finish(files)


def _refuse_wrong_kind(out: Path, split_by_task: bool) -> None:
    if split_by_task and out.is_file():
        raise UsageError(f"{out} is a file; give a folder for one file per task")
    if not split_by_task and out.is_dir():
        raise UsageError(f"{out} is a folder; give a file, or ask for one file per task")


def _open(path: Path, header: str | None) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _part(path).open("w", encoding="utf-8", newline="")
    if header is not None:
        file.write(f"{header}\n")
    return file


def _part(path: Path) -> Path:
    return path.with_name(path.name + PART)


def _finish(files: dict[Path, TextIO]) -> list[Path]:
    for path, file in files.items():
        file.close()
        os.replace(_part(path), path)
    return sorted(files)


def _remove_parts(files: dict[Path, TextIO]) -> None:
    for path in files:
        _part(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _told(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}; choose another place") from error
