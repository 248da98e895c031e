"""A run must not write over what it reads."""

from __future__ import annotations

import os
from pathlib import Path

from configs.errors import ConfigError
from configs.job import Job


def refuse_output_over_input(job: Job) -> None:
    """Compare where output goes with where rows come from: symlinks, trailing slashes and s3a:// do not hide it.

    Raises:
        ConfigError: the output folder is the input, lies inside it, or holds it under a glob that reads all of it.
    """
    sink = canonical(job.sink.path)
    for path in [job.source.path] if isinstance(job.source.path, str) else job.source.path:
        if path.startswith("run:"):
            continue
        source = canonical(path.split("*")[0])
        if source == sink or (sink.startswith(source.rstrip("/") + "/") and _is_folder(path)):
            raise ConfigError(
                f"sink.path {job.sink.path} lies in the input {path}: output would be read as input; "
                "set sink.path to another folder"
            )


def canonical(path: str) -> str:
    """One spelling for one place: absolute and without links on disk, `s3://bucket/key` in S3."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme in ("s3", "s3a", "s3n"):
        return "s3://" + "/".join(part for part in rest.split("/") if part)
    return os.path.realpath(path.removeprefix("file://"))


def _is_folder(path: str) -> bool:
    """Whether a source path reads whole folders; a single file does not read what lies beside it."""
    return "*" in path or "://" in path or Path(path).is_dir()
