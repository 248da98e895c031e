"""What a JSON column holds, as a type that adds up: observed chunk by chunk, merged in any order, made an Arrow type at
the end.

    null + T = T        int + float = float, if every int is a float64 exactly        [] + [T] = [T]
    {a} + {b} = {a, b}  everything else is a conflict, and the column is kept as JSON text

Ints beyond 64 bits, numbers beyond float64, objects without keys and objects with very many different keys have no
column type either and become JSON text too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

MAX_FIELDS = 256
"""Different keys of one object; beyond it the keys are data."""
EXACT = 2**53


@dataclass(slots=True)
class JsonType:
    """The kinds of value seen. Nulls leave no trace."""

    kinds: set[str] = field(default_factory=set)
    """Of: bool, int, float, string, list, object; and `int over 64 bits`, `number over float64`, `many keys`."""
    exact: bool = True
    """Every int is a float64 exactly."""
    items: JsonType | None = None
    fields: dict[str, JsonType] = field(default_factory=dict)

    def __add__(self, other: JsonType) -> JsonType:
        items = self.items + other.items if self.items and other.items else self.items or other.items
        fields = dict(self.fields)
        for name, theirs in other.fields.items():
            fields[name] = fields[name] + theirs if name in fields else theirs
        return JsonType(self.kinds | other.kinds, self.exact and other.exact, items, fields)._bounded()

    def _bounded(self) -> JsonType:
        if len(self.fields) > MAX_FIELDS:
            self.kinds.add("many keys")
        if "many keys" in self.kinds:
            self.fields = {}
        return self


def observe(values: Sequence[Any]) -> JsonType:
    """The type of a column of parsed JSON values."""
    by_kind: dict[type, list[Any]] = {kind: [] for kind in {type(value) for value in values}}
    for value in values:
        by_kind[type(value)].append(value)
    seen = JsonType()
    for kind, members in by_kind.items():
        seen += _observe_kind(kind, members)
    return seen


def _observe_kind(kind: type, values: list[Any]) -> JsonType:
    if kind is type(None):
        return JsonType()
    if kind is bool:
        return JsonType({"bool"})
    if kind is int:
        low, high = min(values), max(values)
        wide = low < -(2**63) or high >= 2**63
        return JsonType({"int", "int over 64 bits"} if wide else {"int"}, exact=low >= -EXACT and high <= EXACT)
    if kind is float:
        return JsonType({"float"} if all(map(math.isfinite, values)) else {"float", "number over float64"})
    if kind is str:
        return JsonType({"string"})
    if kind is list:
        return JsonType({"list"}, items=observe([item for value in values for item in value]))
    return JsonType({"object"}, fields=_observe_fields(values))._bounded()


def _observe_fields(objects: Iterable[dict[str, Any]]) -> dict[str, JsonType]:
    columns: dict[str, list[Any]] = {}
    for each in objects:
        for name, value in each.items():
            columns.setdefault(name, []).append(value)
    return {name: observe(values) for name, values in columns.items()}


def arrow_type(seen: JsonType) -> pa.DataType | None:
    """The column's type, or None if only JSON text can hold it. What was always null is a string column."""
    if not seen.kinds:
        return pa.string()
    if seen.kinds == {"object"}:
        return _struct(seen.fields)
    if seen.kinds == {"list"}:
        items = arrow_type(seen.items or JsonType())
        return None if items is None else pa.list_(items)
    if seen.kinds == {"int", "float"} and seen.exact:
        return pa.float64()
    scalars = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "string": pa.string()}
    return scalars.get(next(iter(seen.kinds))) if len(seen.kinds) == 1 else None


def _struct(fields: dict[str, JsonType]) -> pa.DataType | None:
    types = {name: arrow_type(seen) for name, seen in fields.items()}
    if not types or any(each is None for each in types.values()):
        return None
    return pa.struct(list(types.items()))


def conflict(seen: JsonType, path: str) -> str | None:
    """Where and why a column has no type: ``tags[].score holds int and string``."""
    if seen.kinds == {"object"}:
        if not seen.fields:
            return f"{path} holds only objects without keys"
        return next((why for name, part in seen.fields.items() if (why := conflict(part, f"{path}.{name}"))), None)
    if seen.kinds == {"list"}:
        return conflict(seen.items, f"{path}[]") if seen.items else None
    if arrow_type(seen) is not None:
        return None
    if seen.kinds == {"int", "float"}:
        return f"{path} holds float and int over 2^53"
    return f"{path} holds {' and '.join(sorted(seen.kinds))}"


def fits(value: Any, column: pa.DataType) -> bool:
    """Whether a value fits a column whose type was found without it."""
    try:
        array = pa.array([value], column)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return bool(_same(array[0].as_py(), value))


def _same(kept: Any, value: Any) -> bool:
    """Equal, apart from keys that came back as null because the object lacked them."""
    if isinstance(value, dict):
        return (
            isinstance(kept, dict) and value.keys() <= kept.keys() and all(_same(kept[k], v) for k, v in value.items())
        )
    if isinstance(value, list):
        return len(kept) == len(value) and all(map(_same, kept, value))
    return bool(kept == value) and isinstance(kept, bool) == isinstance(value, bool)


def json_text(value: Any) -> str | None:
    """A value as it is kept in a JSON text column; null stays null."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
