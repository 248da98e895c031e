"""`--set tasks.code.sampling.temperature=0.2`: one value of a job, replaced from the command line.

Values are YAML, so `0.2` is a number, `[a, b]` a list and nothing after the `=` is null. Only what a job can have is
set: a path must name a key of the schema, and a task must stand in the file (`default` always exists).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from configs.document import KeyPath, parse_value
from configs.errors import ConfigError
from configs.keys import below, dotted, elsewhere, find
from configs.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`, read but not applied."""

    path: KeyPath
    value: Any

    def apply(self, data: dict[str, Any]) -> None:
        """Put the value into `data`, making the sections on the way that the file leaves out.

        Those on the way are copied first: a YAML alias makes two tasks share one mapping.
        """
        *above, last = self.path
        for part in above:
            section = data.get(part)
            data[part] = dict(section) if isinstance(section, dict) else {}
            data = data[part]
        data[last] = self.value


def read_override(text: str, tasks: Sequence[str]) -> Override:
    """Read `key=value`. `tasks` are the labels that the file declares.

    Raises:
        ConfigError: no `=`, no such key (the nearest one is named), no such task, or a value that is not YAML.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write it as key=value, e.g. --set tasks.code.sampling.temperature=0.2")
    path = _merge_free_names(tuple(part.strip() for part in name.split(".")))
    _check_path(path, tasks)
    try:
        return Override(path, parse_value(value))
    except ConfigError as error:
        raise ConfigError(f"--set {name}: {error}") from error


def unknown_key(path: Sequence[str]) -> str:
    """`is not a key` with the nearest key beside it, or the place where a key of this name does exist."""
    *above, name = path
    places = elsewhere(name)
    hint = did_you_mean(name, below(above))
    if places and "did you mean" not in hint:
        hint = f"; it stands at {' or '.join(places[:3])}"
    return f"is not a key{hint}"


def _merge_free_names(path: KeyPath) -> KeyPath:
    """Names in `labels`, `rename` and the like may hold dots: everything after the mapping is one name."""
    for end in range(1, len(path) - 1):
        key = find(path[:end])
        if key is not None and key.named and key.section is None:
            return (*path[:end], ".".join(path[end:]))
    return path


def _check_path(path: KeyPath, tasks: Sequence[str]) -> None:
    for end in range(1, len(path) + 1):
        here, key, parent = path[:end], find(path[:end]), find(path[: end - 1])
        if parent is not None and parent.named:
            _check_name(here, parent.path == ("tasks",), tasks)
        elif parent is not None and parent.section is None:
            raise ConfigError(f"--set {dotted(path)}: {dotted(path[: end - 1])} is a value and has no keys below it")
        elif key is None:
            raise ConfigError(f"--set {dotted(here)} {unknown_key(here)}")


def _check_name(path: KeyPath, is_task: bool, tasks: Sequence[str]) -> None:
    if is_task and path[-1] not in tasks and path[-1] != "default":
        hint = did_you_mean(path[-1], {*tasks, "default"})
        raise ConfigError(f"--set {dotted(path)} is not a task of this job{hint}")
