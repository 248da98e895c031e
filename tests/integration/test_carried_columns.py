"""The user's own columns through a whole run: bit for bit, and in one schema over all shards."""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from workplace import Workplace

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]

E_ACUTE = "caf\u00e9"
COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", E_ACUTE), unicodedata.normalize("NFD", E_ACUTE)
TASKS = {name: {"sampling": {"max_tokens": 4}} for name in ("alpha", "beta")}

COLUMNS: dict[str, list[Any]] = {
    "big": [2**53 + 1, None, -(2**63), 2**63 - 1, None, 2**53 + 3],
    "emoji": ["🧑‍🚀", "é́", "🇩🇪", "\u200d", "ﷺ", "😀" * 40],
    "name": [COMPOSED, DECOMPOSED, COMPOSED, DECOMPOSED, "", " "],
    "tags": [[], ["a"], ["a", ""], [], None, [None, "b"]],
    "nested": [{"a": {"b": [{"c": n, "d": None}]}, "e": f"{n}"} for n in range(6)],
    "late": [None, None, None, "first", "second", None],
    "flag": [True, False, None, True, False, True],
    "ratio": [0.1, -0.0, 5e-324, 1.7976931348623157e308, None, 1.0],
    "whole_or_not": [1, 1.5, 2, 2**53, None, -3],
    "long": ["line\n" * 3000, "\r\n", "\t", "tab\tand\u2028separator", "\\n is not \n", '"quoted"'],
    "class": ["keyword", None, "def", "None", "null", "0"],
    "größe in cm": ["1", "2", "3", "4", "5", "6"],
    "mixed": [1, "1", {"a": 1}, [1], None, True],
    "huge": [2**70, 1, None, -(2**70), 0, 5],
    "empty": [{}, {}, {}, None, {}, {}],
}
"""Three rows of task alpha, three of beta, so that `late` is null in all shards of one."""
KEPT_AS_JSON = ("mixed", "huge", "empty")


def rows() -> Rows:
    return [
        {"id": 2**53 + n, "task": "alpha" if n < 3 else "beta", "prompt": f"Row {n}."}
        | {name: values[n] for name, values in COLUMNS.items()}
        for n in range(6)
    ]


def write_lines(path: Path, lines: Rows) -> None:
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def output(run: Path) -> pa.Table:
    """The dataset, by id, after making sure that every shard has the same schema."""
    shards = sorted((run / "data").glob("*.parquet"))
    assert len(shards) > 2
    assert len({pq.read_schema(shard).remove_metadata().to_string() for shard in shards}) == 1
    return pq.read_table(run / "data").sort_by("id")


def test_json_columns_come_back_as_they_were(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    """From a folder of JSONL files, one of them compressed."""
    lines = rows()
    write_lines(workplace.folder / "rows" / "a.jsonl", lines[:2])
    write_lines(workplace.folder / "rows" / "b.jsonl.gz", lines[2:])
    tiny_job([], source={"path": "rows"}, tasks=TASKS, shard={"max_rows": 2})
    out = workplace.run("run", "job.yaml")
    table = output(workplace.folder / "output" / "tiny-1")
    for name in KEPT_AS_JSON:
        assert f"column `{name}` is kept as JSON text" in out
        texts = table.column(name).to_pylist()
        assert repr([text and json.loads(text) for text in texts]) == repr(COLUMNS[name])
    for name in COLUMNS.keys() - KEPT_AS_JSON:
        expected = [float(value) if name == "whole_or_not" and value else value for value in COLUMNS[name]]
        assert repr(table.column(name).to_pylist()) == repr(expected), name  # 1 is not 1.0, -0.0 is not 0.0
    assert table.column("id").to_pylist() == [str(2**53 + n) for n in range(6)]
    assert table.column("prompt").to_pylist() == [f"Row {n}." for n in range(6)]
    assert table.schema.field("late").type == pa.string()
    assert table.schema.field("big").type == pa.int64()
    files = [Path(file).name for file in table.column("source_file").to_pylist()]
    assert files == ["a.jsonl"] * 2 + ["b.jsonl.gz"] * 4
    assert table.column("source_line").to_pylist() == [1, 2, 1, 2, 3, 4]


MOMENT = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
STRUCTS = pa.list_(pa.struct([("at", pa.timestamp("ms", "UTC")), ("words", pa.list_(pa.string()))]))


def arrow_columns() -> dict[str, pa.Array]:
    return {
        "id": pa.array([2**53 + n for n in range(6)], pa.int64()),
        "prompt": pa.array([f"Row {n}." for n in range(6)], pa.large_string()),
        "at": pa.array([MOMENT + timedelta(days=n) for n in range(5)] + [None], pa.timestamp("us", "Europe/Berlin")),
        "at_ns": pa.array([2**60 + n for n in range(6)], pa.int64()).cast(pa.timestamp("ns")),
        "day": pa.array([date(1600, 1, 1 + n) for n in range(6)], pa.date32()),
        "time": pa.array([n * 1_000_003 for n in range(6)], pa.int64()).cast(pa.time64("us")),
        "lasted": pa.array([n * 7 for n in range(6)], pa.int64()).cast(pa.duration("us")),
        "price": pa.array([Decimal("12345678901234.5678"), None, *map(Decimal, ("-0.0001", "0", "1", "2"))]).cast(
            pa.decimal128(20, 4)
        ),
        "color": pa.array(["red", "green", None, "red", "red", ""]).dictionary_encode(),
        "blob": pa.array([bytes(range(256)), b"", None, b"\xff", b"\x00", b"x"], pa.large_binary()),
        "uint": pa.array([2**64 - 1, 0, None, 2**63, 1, 2], pa.uint64()),
        "small": pa.array([-128, 127, None, 0, 1, 2], pa.int8()),
        "single": pa.array([0.1, None, 3.4e38, -0.0, float("inf"), 1.0], pa.float32()),
        "parts": pa.array([[{"at": n, "words": ["a"] * n}] for n in range(5)] + [None], STRUCTS),
        "pair": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 10]], pa.list_(pa.int32(), 2)),
        "labels": pa.array([[("a", 1)], [], None, [("b", 2)], [], []], pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(6),
        "flag": pa.array([True, False, None, True, False, True]),
    }


PLAIN = {"prompt": pa.string(), "color": pa.string(), "blob": pa.binary(), "nothing": pa.string()}
"""Columns whose type has variants that readers disagree on, in the variant that all of them know."""


def test_parquet_columns_come_back_as_they_were(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    source = pa.table(arrow_columns())
    folder = workplace.folder / "rows"
    folder.mkdir()
    pq.write_table(source.slice(0, 4), folder / "a.parquet", row_group_size=3)
    pq.write_table(source.slice(4), folder / "b.parquet")
    tiny_job([], source={"path": "rows/*.parquet"}, tasks={"default": TASKS["alpha"]}, shard={"max_rows": 2})
    workplace.run("run", "job.yaml")
    table = output(workplace.folder / "output" / "tiny-1")
    assert table.column("id").to_pylist() == [str(2**53 + n) for n in range(6)]
    for name in arrow_columns().keys() - {"id"}:
        kind = PLAIN.get(name, source.schema.field(name).type)
        assert table.schema.field(name).type == kind, name
        kept, given = table.column(name), source.column(name).cast(kind)
        assert kept.equals(given), name
    assert pc.all(pc.is_null(table.column("nothing"))).as_py()
