"""A run must not write over what it reads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from configs.errors import ConfigError
from configs.job import Job

_MAGIC = re.compile(r"[*?[]")


def refuse_output_over_input(job: Job) -> None:
    """Compare where output goes with where rows come from: symlinks, trailing slashes and s3a:// do not hide it.

    Raises:
        ConfigError: the output folder is the input, lies inside it, or lies where a glob may read.
    """
    sink = canonical(job.sink.path)
    for path in [job.source.path] if isinstance(job.source.path, str) else job.source.path:
        if not path.startswith("run:") and reads(path, sink):
            raise ConfigError(
                f"sink.path {job.sink.path} lies in the input {path}: output would be read as input; "
                "set sink.path to another folder"
            )


def reads(path: str, folder: str) -> bool:
    """Whether a source path reads the folder, given canonically, or what may come to lie in it."""
    magic = _MAGIC.search(path)
    if magic is None:
        source = canonical(path)
        return folder == source or (_is_folder(path) and folder.startswith(source.rstrip("/") + "/"))
    fixed = path[: magic.start()].rpartition("/")[0]
    pattern = [*canonical(fixed or "/").rstrip("/").split("/"), *path[len(fixed) + 1 :].split("/")]
    return _reaches_into(pattern, folder.split("/"))


def _reaches_into(pattern: Sequence[str], folder: Sequence[str]) -> bool:
    """Whether a glob can match something below the folder; both are given part by part."""
    if not pattern:
        return False
    if "**" in pattern[0] or not folder:
        return True
    return fnmatchcase(folder[0], pattern[0]) and _reaches_into(pattern[1:], folder[1:])


def canonical(path: str) -> str:
    """One spelling for one place: absolute and without links on disk, `s3://bucket/key` in S3."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme in ("s3", "s3a", "s3n"):
        return "s3://" + "/".join(part for part in rest.split("/") if part)
    return os.path.realpath(path.removeprefix("file://"))


def _is_folder(path: str) -> bool:
    """Whether a source path reads whole folders; a single file does not read what lies beside it."""
    return "://" in path or Path(path).is_dir()
