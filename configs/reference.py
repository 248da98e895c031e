"""The reference of a job's keys in Markdown, made from the schema: `draftfleet job > docs/job.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from configs.job import Job
from configs.keys import Key, all_keys, dotted

_HEAD = """# The job file

A job is one YAML file. This page is made from `configs/job.py` by `draftfleet job > docs/job.md`, and a test compares
the two.

Any value can be replaced on the command line: `--set tasks.code.sampling.temperature=0.2`. `draftfleet job JOB` prints
a job with every default written out and explained. Units stand in the names: `_s` is seconds, `_tokens` tokens. In a
key, `*` is a name of your choice.
"""


def reference() -> str:
    """One table per section: key, type, default, reason."""
    sections = [key for key in all_keys().values() if key.section is not None]
    parts = [_HEAD, _table("Top level", Job.__doc__ or "", ())]
    parts += [_table(f"`{_title(key)}`", key.section.__doc__ or "", _path(key)) for key in sections if key.section]
    return "\n".join(parts)


def _path(section: Key) -> tuple[str, ...]:
    return (*section.path, "*") if section.named else section.path


def _title(section: Key) -> str:
    return dotted(_path(section))


def _table(title: str, about: str, path: tuple[str, ...]) -> str:
    return "\n".join([f"## {title}", "", " ".join(about.split()), "", *_rows(path)]) + "\n"


def _rows(path: tuple[str, ...]) -> Iterator[str]:
    yield "| key | type | default | reason |"
    yield "|---|---|---|---|"
    for key in all_keys().values():
        if key.path[:-1] == path:
            yield f"| `{key.path[-1]}` | {key.type} | {_default(key)} | {key.reason} |"


def _default(key: Key) -> str:
    if key.section is not None and not key.optional_section:
        return "required" if key.field.is_required() else "see below"
    default = key.field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    return _shown(default)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[]" if not value else str(list(value))
    return f"{value}"
