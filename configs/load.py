"""From a YAML file to a Job, and back.

    load_job("job.yaml", ["tasks.code.sampling.temperature=0.2"])    read, override, check
    dump_job(job)                                                    YAML that loads to the same job
    describe(job)                                                    the same, every value with its reason beside it

All that is wrong with a file is told at once, each with its line. Input paths (`source.path`, `model.path`,
`model.chat_template`, `draft.path`, `draft.model`) are relative to the job file's folder, so that a job works from
anywhere; given with `--set` they are relative to the working directory, where the shell completed them. The output path
(`sink.path`) is relative to the working directory in both cases.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.document import Document, KeyPath, parse, write, write_value
from configs.errors import ConfigError
from configs.job import Job
from configs.keys import find
from configs.nearest import nearest
from configs.overrides import Override, read_override
from configs.problems import problems

_INPUT_PATHS: tuple[KeyPath, ...] = (
    ("source", "path"),
    ("model", "path"),
    ("model", "chat_template"),
    ("draft", "path"),
    ("draft", "model"),
)
_BARE_NAMES: tuple[KeyPath, ...] = (("model", "path"), ("draft", "model"))
"""Where a word without a slash names a known model."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file and apply `key=value` overrides.

    Raises:
        ConfigError: the file is missing, not YAML, or not a job; every problem is listed with its line, its value, the
            reason, and for a misspelt key the nearest one.
    """
    file = Path(path).expanduser()
    document = parse(_read(file), str(path))
    data = document.data
    settings, complaints = _read_overrides(overrides, data.get("tasks"))
    _resolve_paths(data, file.parent)
    for setting in settings:
        setting.apply(data)
    _resolve_paths(data, Path())
    _fill_empty_sections(data)
    return _validate(document, settings, complaints, str(path))


def override_job(job: Job, overrides: Sequence[str]) -> Job:
    """The job with `key=value` overrides applied.

    Raises:
        ConfigError: as `load_job`.
    """
    document = Document(job.model_dump(mode="json"), {})
    settings, complaints = _read_overrides(overrides, document.data.get("tasks"))
    for setting in settings:
        setting.apply(document.data)
    _resolve_paths(document.data, Path())
    return _validate(document, settings, complaints, "--set")


def dump_job(job: Job) -> str:
    """The whole job as YAML, defaults written out."""
    return write(job.model_dump(mode="json"))


def describe(job: Job) -> str:
    """The whole job as YAML, each value with the reason that its key exists. It loads to the same job."""
    return "\n".join(_described(job.model_dump(mode="json"), ())) + "\n"


def _read_overrides(texts: Sequence[str], tasks: object) -> tuple[list[Override], list[str]]:
    """The overrides that can be read, and what is wrong with the others."""
    names = list(tasks) if isinstance(tasks, dict) else []
    settings: list[Override] = []
    complaints: list[str] = []
    for text in texts:
        try:
            settings.append(read_override(text, names))
        except ConfigError as error:
            complaints.append(str(error))
    return settings, complaints


def _validate(document: Document, settings: Sequence[Override], complaints: list[str], name: str) -> Job:
    try:
        job = Job.model_validate(document.data)
    except ValidationError as error:
        complaints += problems(error, document.lines, [setting.path for setting in settings])
    if complaints:
        count = "1 problem" if len(complaints) == 1 else f"{len(complaints)} problems"
        raise ConfigError(f"{name}: {count}\n" + "\n".join(f"  {line}" for line in complaints))
    return job


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        close = nearest(file.name, (other.name for other in file.parent.glob("*.y*ml")))
        hint = f"did you mean {file.parent / close}?" if close else "`draftfleet init FILE` writes one for your data"
        raise ConfigError(f"there is no job file {file}; {hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read the job file {file}: {error.strerror}") from error


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    """Make the input paths absolute. A second call leaves them as they are, so the first folder wins."""
    for section, key in _INPUT_PATHS:
        holder = data.get(section)
        if isinstance(holder, dict) and holder.get(key):
            value = holder[key]
            several = value if isinstance(value, list) else [value]
            resolved = [_absolute(one, folder, bare_name=(section, key) in _BARE_NAMES) for one in several]
            holder[key] = resolved if isinstance(value, list) else resolved[0]


def _absolute(value: Any, folder: Path, bare_name: bool) -> Any:
    """A local path becomes absolute; URLs, `run:<id>` and, with `bare_name`, a word without a slash stay as they are.

    Symlinks stay, so that a job read through one keeps its paths when the link moves on.
    """
    if not isinstance(value, str) or "://" in value or value.startswith("run:"):
        return value
    if bare_name and "/" not in value:
        return value
    start = glob.escape(str(folder)) if glob.has_magic(value) else str(folder)
    return os.path.abspath(Path(start, Path(value).expanduser()))


def _fill_empty_sections(data: dict[str, Any], path: KeyPath = ()) -> None:
    """A section with nothing below it means its defaults: YAML reads `engine:` as null."""
    for name, value in data.items():
        here = (*path, str(name))
        if not _holds_keys(here):
            continue
        if value is None:
            data[name] = {}
        elif isinstance(value, dict):
            _fill_empty_sections(value, here)


def _holds_keys(path: KeyPath) -> bool:
    """A section, a mapping, or one task; not a section for which null is a value of its own."""
    key, above = find(path), find(path[:-1])
    if key is None:
        return above is not None and above.named and above.section is not None
    return key.named or (key.section is not None and not key.optional_section)


def _described(data: dict[str, Any], path: KeyPath) -> list[str]:
    lines = []
    for name, value in data.items():
        here = (*path, name)
        key, above = find(here), find(path)
        indent = "  " * len(path)
        inside = isinstance(value, dict) and value and (key is None or key.section is not None)
        if inside and (above is None or above.section is not None):
            lines += [f"{indent}{write_value(name)}:", *_described(value, here)]
        else:
            reason = f"  # {key.reason}" if key is not None and key.reason else ""
            lines.append(f"{indent + write_value(name) + ': ' + write_value(value):<48}{reason}")
    return lines
