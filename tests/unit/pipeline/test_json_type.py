"""JSON columns get one type whatever the order in which their values are seen, and keep every value bit for bit."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.planning.carried import from_json, json_columns
from pipeline.planning.json_type import MAX_FIELDS, JsonType, arrow_type, conflict, fits, observe

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
LIKE_VALUES = st.one_of(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.none() | st.lists(TEXT, max_size=3)),
    st.lists(st.none() | st.fixed_dictionaries({}, optional={"a": st.none() | TEXT, "b": st.lists(st.floats(-1, 1))})),
    st.lists(st.integers(-100, 100) | st.floats(allow_nan=False, allow_infinity=False)),
)


def filled(value: Any, kind: pa.DataType) -> Any:
    """A value with the keys that its objects lack as nulls, and its ints as floats where the column is one."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: filled(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [filled(item, kind.value_type) for item in value]
    return float(value) if pa.types.is_floating(kind) else value


def exactly(value: Any) -> str:
    """Distinguishes 1, 1.0, True, -0.0 and 0.0."""
    return json.dumps(value, sort_keys=True)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=6) | LIKE_VALUES)
def test_every_value_comes_back_bit_for_bit(values: list[Any]) -> None:
    rows = [{"x": value} for value in values]
    carried = from_json({"x": observe(values)})
    kept = json_columns(rows, carried)[0].to_pylist()
    if "x" in carried.as_json:
        assert [None if text is None else exactly(json.loads(text)) for text in kept] == [
            None if value is None else exactly(value) for value in values
        ]
        assert len(carried.warnings) == 1
        assert carried.warnings[0].startswith("column `x` is kept as JSON text: x")
    else:
        kind = carried.schema.field("x").type
        assert [exactly(value) for value in kept] == [exactly(filled(value, kind)) for value in values]
        assert not carried.warnings


@settings(deadline=None)
@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=4), st.randoms())
def test_a_type_depends_on_the_values_and_not_on_how_they_were_cut(chunks: list[list[Any]], random: Any) -> None:
    whole = observe([value for chunk in chunks for value in chunk])
    summed = reduce(add, [observe(chunk) for chunk in chunks])
    assert arrow_type(summed) == arrow_type(whole)
    shuffled = random.sample(chunks, len(chunks))
    other = arrow_type(reduce(add, [observe(chunk) for chunk in shuffled]))
    assert (other is None) == (arrow_type(whole) is None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None, None], pa.string()),
        ([True, None], pa.bool_()),
        ([1, 2**53], pa.int64()),
        ([1, 0.5], pa.float64()),
        ([[], ["a"]], pa.list_(pa.string())),
        ([[]], pa.list_(pa.string())),
        ([[], [None]], pa.list_(pa.string())),
        ([{"a": 1}, {"b": []}], pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ([-(2**63), 2**63 - 1], pa.int64()),
    ],
)
def test_types(values: list[Any], expected: pa.DataType) -> None:
    assert arrow_type(observe(values)) == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, "a"], "x holds int and string"),
        ([True, 1], "x holds bool and int"),
        ([2**63], "x holds int and int over 64 bits"),
        ([2**53 + 1, 0.5], "x holds float and int over 2^53"),
        ([[1], 1], "x holds int and list"),
        ([{"a": [1]}, {"a": ["b"]}], "x.a[] holds int and string"),
        ([{}], "x holds only objects without keys"),
        ([json.loads("1e999")], "x holds float and number over float64"),
        ([{str(n): 1} for n in range(MAX_FIELDS + 1)], "x holds many keys and object"),
    ],
)
def test_conflicts_say_where_and_why(values: list[Any], reason: str) -> None:
    assert arrow_type(observe(values)) is None
    assert conflict(observe(values), "x") == reason


def test_adding_stays_small_when_keys_are_data() -> None:
    total = JsonType()
    for start in range(0, 5000, 50):
        total += observe([{str(start + n): 1} for n in range(50)])
    assert total.fields == {}
    assert arrow_type(total) is None


def test_a_value_fits_only_if_the_column_gives_it_back() -> None:
    column = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    assert fits({"a": 1}, column)
    assert fits(None, column)
    assert not fits({"a": 1, "c": 2}, column)
    assert not fits({"a": "x"}, column)
    assert not fits(2**63, pa.int64())
    assert not fits(True, pa.int64())
    assert not fits(1.5, pa.int64())
