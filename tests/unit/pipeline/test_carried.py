"""Carried columns: refused names and the rename to write, one type over all files, the same values in it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import SourceError
from pipeline.planning.carried import (
    arrow_columns,
    from_arrow,
    merge_types,
    refuse_clashes,
    rename_line,
    schema_from_text,
    schema_text,
)

NUMBERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
]
KINDS = st.recursive(
    st.sampled_from([*NUMBERS, pa.string(), pa.bool_(), pa.null(), pa.timestamp("ms"), pa.timestamp("us")]),
    lambda inner: (
        inner.map(pa.list_)
        | st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2).map(
            lambda f: pa.struct(list(f.items()))
        )
    ),
    max_leaves=3,
)


def test_names_of_ours_are_refused_with_the_rename_that_works() -> None:
    with pytest.raises(SourceError) as raised:
        refuse_clashes(["text", "status", "error"], frozenset({"id", "task"}), "in.jsonl")
    message = str(raised.value)
    assert message.startswith("in.jsonl: columns `text` and `error` bear names that the output uses")
    assert message.endswith("rename: {text: input_text, error: input_error}")


def test_a_suggested_name_is_free_and_is_yaml() -> None:
    assert rename_line(["text"], ["text", "input_text"]) == "{text: input_text_2}"
    assert rename_line(["_id", "_shard"], ["_id"]) == "{_id: input_id, _shard: input_shard}"


def test_parts_that_are_ours_are_no_clash() -> None:
    refuse_clashes(["id", "task", "status", "_private"], frozenset({"id", "task"}), "in.jsonl")
    with pytest.raises(SourceError, match="column `id` bears a name"):
        refuse_clashes(["id"], frozenset({"task"}), "in.jsonl")


def test_keys_as_columns_are_refused() -> None:
    with pytest.raises(SourceError, match="over 1000 columns"):
        refuse_clashes([f"key-{n}" for n in range(1001)], frozenset(), "in.jsonl")


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.uint32(), pa.int64()),
        (pa.int64(), pa.uint64(), None),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.int64(), None),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([("b", pa.bool_())]),
            pa.struct([("a", pa.int8()), ("b", pa.bool_())]),
        ),
        (pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("ms"), None),
        (pa.decimal128(5, 2), pa.decimal128(5, 2), pa.decimal128(5, 2)),
    ],
)
def test_merged_types_hold_both_exactly(ours: pa.DataType, theirs: pa.DataType, merged: pa.DataType | None) -> None:
    assert merge_types(ours, theirs) == merged
    assert merge_types(theirs, ours) == merged or pa.types.is_struct(ours)


@settings(deadline=None)
@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.data())
def test_numbers_keep_their_value_in_the_merged_type(
    ours: pa.DataType, theirs: pa.DataType, data: st.DataObject
) -> None:
    merged = merge_types(ours, theirs)
    if merged is None or pa.types.is_floating(ours):
        return
    signed, bits = pa.types.is_signed_integer(ours), ours.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    value = data.draw(st.integers(low, high))
    assert pa.array([value], ours).cast(merged).to_pylist() == [value]


@settings(deadline=None)
@given(KINDS, KINDS)
def test_whatever_merges_can_be_converted_and_keeps_its_nulls(ours: pa.DataType, theirs: pa.DataType) -> None:
    carried = from_arrow([("a", pa.schema([("x", ours)])), ("b", pa.schema([("x", theirs)]))])
    for kind in (ours, theirs):
        rows = pa.table({"x": pa.nulls(2, kind)})
        (column,) = arrow_columns(rows, carried)
        assert column.type == carried.schema.field("x").type
        assert column.null_count == 2


def test_files_that_disagree_give_json_text_and_a_warning() -> None:
    carried = from_arrow(
        [("a.parquet", pa.schema([("x", pa.int64())])), ("b.parquet", pa.schema([("x", pa.string())]))]
    )
    assert carried.as_json == {"x"}
    assert carried.warnings == ("column `x` is kept as JSON text: int64 in a.parquet, string in b.parquet",)
    assert arrow_columns(pa.table({"x": ["1", None]}), carried)[0].to_pylist() == ['"1"', None]
    assert arrow_columns(pa.table({"x": [2**53 + 1]}), carried)[0].to_pylist() == [str(2**53 + 1)]


def test_columns_that_a_file_lacks_are_null_there() -> None:
    carried = from_arrow([("a", pa.schema([("x", pa.int8())])), ("b", pa.schema([("y", pa.string())]))])
    x, y = arrow_columns(pa.table({"y": ["v"]}), carried)
    assert (x.to_pylist(), y.to_pylist()) == ([None], ["v"])


def test_nested_values_survive_a_wider_type() -> None:
    narrow = pa.table({"x": pa.array([{"a": [1, None]}, None, {"a": None}], pa.struct([("a", pa.list_(pa.int8()))]))})
    wide = pa.schema([("x", pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())]))])
    carried = from_arrow([("n", narrow.schema), ("w", wide)])
    assert carried.schema == wide
    (column,) = arrow_columns(narrow, carried)
    assert column.to_pylist() == [{"a": [1, None], "b": None}, None, {"a": None, "b": None}]


def test_a_type_without_a_place_in_parquet_is_refused() -> None:
    with pytest.raises(SourceError, match=r"in\.arrow: column `x` .* has no place in Parquet"):
        from_arrow([("in.arrow", pa.schema([("x", pa.month_day_nano_interval())]))])


def test_a_schema_survives_json() -> None:
    schema = pa.schema([("é", pa.list_(pa.struct([("a", pa.decimal128(9, 2))]))), ("z", pa.timestamp("us", "UTC"))])
    assert schema_from_text(json.loads(json.dumps(schema_text(schema)))) == schema
