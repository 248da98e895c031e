"""Every key of a job as a flat table: path, type, default, reason.

The reference page, the hints for misspelt keys, the overrides and the fingerprints all read this one table, which is
derived from the models in `job`. In a path, `*` stands for a name that the user chooses:
`tasks.*.sampling.temperature`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from configs.document import KeyPath
from configs.job import Job, Section

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_TYPES: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "value"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a job file."""

    path: KeyPath
    field: FieldInfo
    section: type[Section] | None
    """The section below it, if it is not a value."""
    named: bool
    """A mapping: the user chooses the names below it, as in `tasks` and `labels`."""

    @property
    def reason(self) -> str:
        """Why the key exists, in one sentence or two."""
        return self.field.description or " ".join(((self.section and self.section.__doc__) or "").split())

    @property
    def optional_section(self) -> bool:
        """Null is a value of its own here: it means `as the job says elsewhere`, not `all defaults`."""
        return self.section is not None and not self.named and NoneType in get_args(self.field.annotation)

    @property
    def type(self) -> str:
        """The type in words: `integer ≥ 1`, `fixed or off`, `list of text`."""
        bounds = [
            f"{sign} {_number(getattr(rule, name))}"
            for rule in self.field.metadata
            for name, sign in _BOUNDS.items()
            if hasattr(rule, name)
        ]
        return " ".join([_type(self.field.annotation), ", ".join(bounds)]).strip()


@cache
def all_keys() -> dict[KeyPath, Key]:
    """Sections and values, in the order in which the models declare them."""
    return {key.path: key for key in _walk(Job, ())}


def find(path: Sequence[str]) -> Key | None:
    """The key at a path of a real file, where names stand instead of `*`; None if there is none."""
    return all_keys().get(starred(path))


def starred(path: Sequence[str]) -> KeyPath:
    """The path with every user-chosen name replaced by `*`."""
    out: KeyPath = ()
    for part in path:
        above = all_keys().get(out)
        out = (*out, "*" if above is not None and above.named else part)
    return out


def below(path: Sequence[str]) -> list[str]:
    """Names of the keys directly below a section; none below a value or an unknown path."""
    parent = starred(path)
    return [key[-1] for key in all_keys() if key[:-1] == parent]


def elsewhere(name: str) -> list[str]:
    """Dotted paths of all keys of this name, anywhere in a job."""
    return [dotted(path) for path in all_keys() if path[-1] == name]


def dotted(path: Sequence[str]) -> str:
    return ".".join(path)


def _walk(section: type[Section], above: KeyPath) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = (*above, name)
        named = get_origin(field.annotation) is dict
        inner = _section(field.annotation)
        yield Key(path, field, inner, named)
        if inner is not None:
            yield from _walk(inner, (*path, "*") if named else path)


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _section(part))), None)


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in parts if part is not NoneType)
    if origin is Annotated:
        return _type(parts[0])
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"mapping of {_type(parts[1])}"
    if _section(annotation) is not None:
        return "section"
    return _TYPES.get(annotation, "value")


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"
