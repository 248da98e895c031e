"""The user's own columns: which are carried to the output, under which names, in which types.

A carried column keeps its name, so one that bears a name of ours is refused, with the `source.rename` to write. Columns
that play our part of the same name (`id` as the id, `task` as the task) are ours and not carried twice.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from configs.errors import ConfigError, SourceError
from configs.nearest import did_you_mean
from pipeline.planning.json_type import JsonType, arrow_type, conflict, json_text
from pipeline.schema import OUTPUT_NAMES, PLAN_FIELDS, RESERVED_NAMES

REFUSED_NAMES = RESERVED_NAMES | {field.name for field in PLAN_FIELDS}
MAX_COLUMNS = 1000


@dataclass(frozen=True)
class CarriedSchema:
    """One schema for the whole run. The columns in `as_json` hold JSON text: no column type fits their values."""

    schema: pa.Schema
    as_json: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def refuse_clashes(names: Iterable[str], ours: frozenset[str], where: str) -> None:
    """Refuse names that the output needs. `ours` are the columns that play our part of their name.

    Raises:
        SourceError: with the `source.rename` that makes the input usable.
    """
    present = list(names)
    clashing = [name for name in present if name in REFUSED_NAMES and name not in ours]
    if clashing:
        verb = "bears a name" if len(clashing) == 1 else "bear names"
        raise SourceError(
            f"{where}: {_listed(clashing)} {verb} that the output uses; add to the job under source:\n"
            f"  rename: {rename_line(clashing, present)}"
        )
    if len(present) > MAX_COLUMNS:
        raise SourceError(f"{where}: over {MAX_COLUMNS} columns; are the keys data? Put them into one object column")


def refuse_unknown_columns(asked: Iterable[str] | None, carried: pa.Schema) -> None:
    """Refuse names in `sink.columns` that no output row has.

    Raises:
        ConfigError: with the nearest name that there is.
    """
    known = sorted({*OUTPUT_NAMES, *carried.names})
    unknown = next((name for name in asked or () if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"sink.columns: the output has no column `{unknown}`{hint}")


def rename_line(clashing: Sequence[str], present: Iterable[str]) -> str:
    """A YAML flow mapping: `{text: input_text, error: input_error}`."""
    taken = {*present, *REFUSED_NAMES}
    renames: dict[str, str] = {}
    for name in clashing:
        renames[name] = free_name(f"input_{name.lstrip('_')}", taken)
        taken.add(renames[name])
    return yaml.safe_dump(renames, default_flow_style=True, sort_keys=False, width=10_000).strip()


def free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"column {quoted[0]}" if len(quoted) == 1 else f"columns {', '.join(quoted[:-1])} and {quoted[-1]}"


def from_json(columns: Mapping[str, JsonType]) -> CarriedSchema:
    """The schema of columns that came as JSON."""
    types = {name: arrow_type(seen) for name, seen in columns.items()}
    return CarriedSchema(
        pa.schema([pa.field(name, each or pa.string()) for name, each in types.items()]),
        frozenset(name for name, each in types.items() if each is None),
        tuple(
            f"column `{name}` is kept as JSON text: {conflict(columns[name], name)}"
            for name, each in types.items()
            if each is None
        ),
    )


def from_arrow(schemas: Sequence[tuple[str, pa.Schema]]) -> CarriedSchema:
    """The schema of columns that came as Arrow, from (file, schema) of every file.

    Raises:
        SourceError: a column type that Parquet cannot hold.
    """
    merged: dict[str, pa.DataType] = {}
    first_seen: dict[str, str] = {}
    as_json: dict[str, str] = {}
    for path, schema in schemas:
        for column in schema:
            theirs = normalised(column.type)
            first_seen.setdefault(column.name, path)
            both = merge_types(merged.setdefault(column.name, theirs), theirs)
            if both is None:
                why = f"{merged[column.name]} in {first_seen[column.name]}, {theirs} in {path}"
                as_json.setdefault(column.name, f"column `{column.name}` is kept as JSON text: {why}")
            else:
                merged[column.name] = both
    fields = [pa.field(name, pa.string() if name in as_json else _settled(kind)) for name, kind in merged.items()]
    for each in fields:
        _refuse_unwritable(each, first_seen[each.name])
    return CarriedSchema(pa.schema(fields), frozenset(as_json), tuple(as_json.values()))


def _refuse_unwritable(column: pa.Field, path: str) -> None:
    try:
        pq.write_table(pa.schema([column]).empty_table(), io.BytesIO())
    except (pa.ArrowException, NotImplementedError) as error:
        raise SourceError(f"{path}: column `{column.name}` ({column.type}) has no place in Parquet: {error}") from None


def normalised(kind: pa.DataType) -> pa.DataType:
    """The plain form of a type: no dictionary, run-end, view, large or extension variant; readers disagree on those."""
    if isinstance(kind, pa.BaseExtensionType):
        return normalised(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return normalised(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, normalised(each.type)) for each in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(normalised(kind.value_type), kind.list_size)
    if _is_list(kind):
        return pa.list_(normalised(kind.value_type))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(test(kind) for test in tests)


def _settled(kind: pa.DataType) -> pa.DataType:
    """A type with a string wherever no value ever said more than null."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _settled(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    return kind


def merge_types(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType | None:
    """The type that holds both exactly, or None."""
    if ours == theirs or pa.types.is_null(theirs):
        return ours
    if pa.types.is_null(ours):
        return theirs
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        return _merge_structs(ours, theirs)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        items = merge_types(ours.value_type, theirs.value_type)
        return None if items is None else pa.list_(items)
    if _is_number(ours) and _is_number(theirs):
        return _merge_numbers(ours, theirs)
    if pa.types.is_temporal(ours) and ours.id == theirs.id and getattr(ours, "tz", None) == getattr(theirs, "tz", None):
        return max(ours, theirs, key=lambda kind: ["s", "ms", "us", "ns"].index(kind.unit))
    return None


def _merge_structs(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType | None:
    fields = {each.name: each.type for each in ours}
    for each in theirs:
        both = merge_types(fields.get(each.name, pa.null()), each.type)
        if both is None:
            return None
        fields[each.name] = both
    return pa.struct(list(fields.items()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _merge_numbers(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType | None:
    """The narrower of the standard types that holds every value of both."""
    order = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
    order += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16()]
    holds = [kind for kind in order if _holds(kind, ours) and _holds(kind, theirs)]
    return min(holds, key=lambda kind: kind.bit_width) if holds else None


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of `narrow` is exactly one of `wide`."""
    if wide == narrow:
        return True
    if pa.types.is_floating(wide):
        mantissa = {16: 11, 32: 24, 64: 53}[wide.bit_width]
        if pa.types.is_floating(narrow):
            return bool(narrow.bit_width < wide.bit_width)
        return bool(narrow.bit_width - pa.types.is_signed_integer(narrow) <= mantissa)
    if pa.types.is_floating(narrow) or (pa.types.is_signed_integer(narrow) and pa.types.is_unsigned_integer(wide)):
        return False
    grows = pa.types.is_signed_integer(wide) and pa.types.is_unsigned_integer(narrow)
    return bool(narrow.bit_width + grows <= wide.bit_width)


def json_columns(rows: Sequence[Mapping[str, Any]], carried: CarriedSchema) -> list[pa.Array]:
    """Parsed JSON rows as the run's carried columns."""
    columns: list[pa.Array] = []
    for column in carried.schema:
        values = [row.get(column.name) for row in rows]
        if column.name in carried.as_json:
            values = [json_text(value) for value in values]
        columns.append(pa.array(values, column.type))
    return columns


def arrow_columns(rows: pa.Table, carried: CarriedSchema) -> list[pa.Array]:
    """Rows of one file as the run's carried columns."""
    columns: list[pa.Array] = []
    for column in carried.schema:
        if column.name not in rows.column_names:
            columns.append(pa.nulls(len(rows), column.type))
            continue
        values = rows.column(column.name).combine_chunks()
        if column.name in carried.as_json:
            columns.append(pa.array([_native_json(value) for value in values.to_pylist()], pa.string()))
        else:
            columns.append(conform(values, column.type))
    return columns


def _native_json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def conform(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values in a type that `merge_types` found to hold them."""
    if values.type == wanted:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), wanted)
    if pa.types.is_struct(wanted):
        present = {each.name for each in values.type}
        parts = [
            conform(values.field(each.name), each.type) if each.name in present else pa.nulls(len(values), each.type)
            for each in wanted
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())
    if pa.types.is_list(wanted) and pa.types.is_list(values.type):
        items = conform(values.values, wanted.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=wanted, mask=values.is_null())
    return values.cast(wanted)


def schema_text(schema: pa.Schema) -> str:
    """A schema for a JSON file; `schema_from_text` gives it back."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
