"""YAML to plain data, with the line of every key, and back.

YAML alone lets a key appear twice and keeps the last one; a job that says two things at once is an error here. Keys are
text as they are written: a label `2026` or a column `yes` needs no quotes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from configs.errors import ConfigError

KeyPath = tuple[str, ...]

_DEEPEST_KEY = 12
"""A job is five keys deep; an alias that contains itself has no end."""


_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says, and where: `lines[("model", "path")]` is a 1-based line number."""

    data: dict[str, Any]
    lines: dict[KeyPath, int]


class _Loader(yaml.SafeLoader):
    """Safe YAML whose keys are text, each given once. Checked while composing, before `<<` merges keys in."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be plain text", key.start_mark)
            if key.value in first:
                problem = f"{key.value!r} is given twice, first in line {first[key.value].line + 1}; keep one"
                raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
            first[key.value] = key.start_mark
            if key.tag != _MERGE:
                key.tag = _TEXT
        return node


def parse(text: str, name: str) -> Document:
    """Read one YAML mapping. `name` stands for the file in messages.

    Raises:
        ConfigError: not YAML (with line and column), a key given twice, or something else than a mapping.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_error(error, name)) from error
    except RecursionError:
        raise ConfigError(f"{name} nests lists or mappings too deeply for a job") from None
    if not isinstance(data, dict) or not isinstance(node, yaml.MappingNode):
        found = "is empty" if data is None else f"holds {_kind(data)}"
        raise ConfigError(f"{name} {found}; a job is a mapping of sections: workload, source, tasks, ...")
    return Document(data, dict(_lines(node, ())))


def parse_value(text: str) -> Any:
    """One YAML value, as in `--set key=value`: `0.2` is a number, `[a, b]` a list, nothing is null.

    Raises:
        ConfigError: not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a YAML value; put quotes around text with special characters") from error
    except RecursionError:
        raise ConfigError("the value nests lists or mappings too deeply") from None


class _Dumper(yaml.SafeDumper):
    """Writes text as it is, but in double quotes where a reader would take a character for a line break."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if any(break_ in text for break_ in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TEXT, text, style)


_Dumper.add_representer(str, _represent_text)


def write(data: object) -> str:
    """A YAML document that `parse` reads back unchanged."""
    return str(yaml.dump(data, None, _Dumper, sort_keys=False, allow_unicode=True, width=100))


def write_value(value: object) -> str:
    """One value on one line of YAML."""
    text = yaml.dump(value, None, _Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return str(text).removesuffix("\n").removesuffix("\n...")


def _lines(node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    for key, value in node.value:
        here = (*path, key.value)
        yield here, key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and len(here) < _DEEPEST_KEY:
            yield from _lines(value, here)


def _syntax_error(error: yaml.YAMLError, name: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{name}:{mark.line + 1}:{mark.column + 1}: {error.problem or error.context}"
    return f"{name} is not YAML: {error}"


def _kind(data: object) -> str:
    return "a list" if isinstance(data, list) else f"only the value {data!r}"
