"""What pydantic says of a job, in a user's words: the dotted key, its value, the reason, and the key that was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from configs.document import KeyPath
from configs.keys import below, dotted, find
from configs.nearest import did_you_mean, nearest
from configs.overrides import unknown_key

_BOUND_WORDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_long": "has {actual_length} entries; {max_length} at most",
    "literal_error": "must be {expected}",
    "string_type": "must be text; put quotes around it",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "tuple_type": "must be a list, e.g. [a, b]",
    "dict_type": "must be a mapping of names to values",
    "model_type": "is a section: its keys stand below it, indented",
    "model_attributes_type": "is a section: its keys stand below it, indented",
}


def problems(error: ValidationError, lines: Mapping[KeyPath, int], overridden: Sequence[KeyPath]) -> list[str]:
    """One line per wrong key, in the order of the file. `lines` are the file's, `overridden` the paths of `--set`."""
    reasons: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        reasons.setdefault(_key_of(detail["loc"]), []).append(detail)
    told = [(_line(path, lines), path, details) for path, details in reasons.items()]
    told.sort(key=lambda one: one[0])
    return [_where(path, line, overridden) + _sentence(path, details) for line, path, details in told]


def _key_of(loc: tuple[int | str, ...]) -> KeyPath:
    """The job's key: without pydantic's own steps (`[key]`, the branch of a union), but with the index into a list."""
    path: KeyPath = ()
    for part in map(str, loc):
        here = (*path, part)
        above = find(path)
        steps_down = above is None or above.section is not None or above.named
        if part == "[key]" or not steps_down:
            break
        path = here
    return path


def _line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 0)


def _where(path: KeyPath, line: int, overridden: Sequence[KeyPath]) -> str:
    if any(path[: len(one)] == one for one in overridden):
        return "--set "
    return f"line {line}: " if line else ""


def _sentence(path: KeyPath, details: Sequence[ErrorDetails]) -> str:
    first = details[0]
    if first["type"] == "extra_forbidden":
        return f"{dotted(path)} {unknown_key(path)}"
    if first["type"] == "missing":
        return f"{dotted(path)} is missing: {_reason_of(path)}"
    reasons = list(dict.fromkeys(_reason(detail) for detail in details))
    if not path:
        return "; ".join(reasons)
    return f"{dotted(path)}: {_shown(first['input'])} {' or '.join(reasons)}{_near(path, first)}"


def _reason(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "string_pattern_mismatch":
        return f"does not match {context['pattern']}"
    if detail["type"] == "value_error":
        return f"is refused: {context['error']}"
    words = _BOUND_WORDS.get(detail["type"])
    return words.format(**context) if words else f"is refused: {detail['msg']}"


def _near(path: KeyPath, detail: ErrorDetails) -> str:
    """A misspelt choice gets the nearest one; a section written as a value gets its keys."""
    key = find(path)
    if detail["type"] == "literal_error" and key is not None and isinstance(detail["input"], str):
        choices = [word for word in key.type.split(" ") if word != "or"]
        close = nearest(detail["input"], choices)
        return f"; did you mean {close}?" if close else ""
    if detail["type"] in ("model_type", "model_attributes_type"):
        return did_you_mean("", below(path))
    return ""


def _reason_of(path: KeyPath) -> str:
    key = find(path)
    return key.reason if key is not None else "it is required"


def _shown(value: Any) -> str:
    """As it stands in the file, about: text in quotes, dates and numbers as they are."""
    text = "null" if value is None else repr(value) if isinstance(value, str | list | dict) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
