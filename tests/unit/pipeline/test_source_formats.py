"""The same rows come out of every format, with their lines; a source has one format and says so if it has not."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import job_over, planned, write_jsonl

from configs.errors import ConfigError, SourceError
from configs.job import Job
from pipeline.planning.chunk_rows import JsonFormat, JsonRows
from pipeline.source.chunk import LineChunk
from pipeline.source.column_map import ColumnMap
from pipeline.source.jsonl import read_lines
from pipeline.source.opening import open_source

ROWS = [
    {"id": "a", "prompt": "One 😀", "note": "é\u0301"},
    {"id": "b", "prompt": 'Two, "quoted"\nand broken', "note": ""},
    {"id": "c", "prompt": "Three", "note": "x"},
]


def csv_text(rows: list[dict[str, Any]], delimiter: str = ",", line_end: str = "\r\n") -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def save(folder: Path, name: str) -> Path:
    """ROWS in the format that the name's ending tells."""
    path, plain = folder / name, name.removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    if plain.endswith((".csv", ".tsv")):
        data = csv_text(ROWS, "\t" if plain.endswith(".tsv") else ",").encode()
    else:
        data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("in.jsonl", [1, 2, 3]),
        ("in.ndjson", [1, 2, 3]),
        ("in.jsonl.gz", [1, 2, 3]),
        ("in.jsonl.zst", [1, 2, 3]),
        ("in.parquet", [1, 2, 3]),
        ("in.csv", [2, 3, 5]),
        ("in.tsv", [2, 3, 5]),
        ("in.csv.gz", [2, 3, 5]),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, chat_model: Path, name: str, lines: list[int]) -> None:
    path = save(tmp_path, name)
    reference = planned(job_over(write_jsonl(tmp_path / "reference.jsonl", ROWS)), chat_model).by_id()
    got = planned(job_over(path), chat_model)
    rows = sorted(got.rows, key=lambda row: row["_ordinal"])
    assert [row["_id"] for row in rows] == ["a", "b", "c"]
    assert [row["_source_line"] for row in rows] == lines
    assert {row["_source_file"] for row in rows} == {str(path)}
    assert [(row["prompt"], row["note"]) for row in rows] == [(row["prompt"], row["note"]) for row in ROWS]
    assert all(row["_prompt_token_ids"] == reference[row["_id"]]["_prompt_token_ids"] for row in rows)


def test_without_ids_every_format_names_a_row_alike(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"prompt": row["prompt"]} for row in ROWS]
    write_jsonl(tmp_path / "in.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    (tmp_path / "in.csv").write_text(csv_text(rows))
    names = [set(planned(job_over(tmp_path / f"in.{end}"), chat_model).by_id()) for end in ("jsonl", "parquet", "csv")]
    assert names[0] == names[1] == names[2]


# --- JSON lines


def test_bom_crlf_and_blank_lines_are_tolerated(tmp_path: Path, chat_model: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "prompt": "x"}\r\n\r\n   \n{"id": "b", "prompt": "y"}')
    got = planned(job_over(path), chat_model)
    assert {row["_id"]: (row["_source_line"], row["_ordinal"]) for row in got.rows} == {"a": (1, 0), "b": (4, 1)}


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"", b" ", b'{"p": 1}', b'{"p": "two"}\r', b"{"]), max_size=12),
    st.integers(1, 40),
    st.booleans(),
)
def test_lines_keep_their_numbers_however_the_file_is_cut(lines: list[bytes], chunk_bytes: int, ends: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    chunks = list(read_lines(pa.BufferReader(data), 0, "in.jsonl", 5, chunk_bytes))
    rows = [JsonRows(chunk, JsonFormat(ColumnMap(None, None, None, None, {}))) for chunk in chunks]
    found = sorted((row.line, row.ordinal) for part in rows for row in (*part.readable, *part.rejected))
    assert found == list(
        zip([n for n, line in enumerate(lines, 1) if line.strip()], range(5, 5 + len(lines)), strict=False)
    )
    assert sum(chunk.num_rows for chunk in chunks) == len(found)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[\n{"prompt": "x"}\n]', "is one JSON array, not JSON lines"),
        ('{"prompt": "x"}'.encode("utf-16"), "is UTF-16"),
        (b"", "has no rows"),
        (b"\n\n", "has no rows"),
    ],
)
def test_a_file_that_is_no_json_lines_is_named(tmp_path: Path, chat_model: Path, data: bytes, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message) as raised:
        planned(job_over(path), chat_model)
    assert str(path) in str(raised.value)


def test_the_head_of_a_chunk_counts_rows_and_not_lines() -> None:
    chunk = LineChunk(0, 1, 0, 3, b'\n{"a": 1}\n\n{"a": 2}\n{"a": 3}')
    assert chunk.head(2).data == b'\n{"a": 1}\n\n{"a": 2}'
    assert chunk.head(2).num_rows == 2


# --- CSV


def test_csv_columns_are_text_and_empty_cells_say_nothing(tmp_path: Path, chat_model: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,prompt,zip,temperature,max_tokens,task\n007,Hi,01234,0.5,8,\n8,Ho,,,,default\n")
    got = planned(job_over(path), chat_model).by_id()
    assert (got["007"]["zip"], got["007"]["_sampling"]["temperature"], got["007"]["_sampling"]["max_tokens"]) == (
        "01234",
        0.5,
        8,
    )
    assert (got["8"]["zip"], got["8"]["_sampling"]["temperature"]) == ("", 0.0)


def test_bad_csv_rows_are_errors_with_their_line(tmp_path: Path, chat_model: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,prompt\n1,"two\nlines"\n2\n3,x,y\n\n4,"open"quote\n5,\xff\n6,fine\n')
    got = planned(job_over(path), chat_model)
    assert {row["_id"]: (row["_source_line"], row["_ordinal"]) for row in got.rows} == {"1": (2, 0), "6": (9, 5)}
    assert got.errors == [(4, "malformed_csv"), (5, "malformed_csv"), (7, "malformed_csv"), (8, "invalid_utf8")]
    assert {row["source_line"]: row["raw"] for row in got.rejected}[5] == "3,x,y"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("id,prompt,id\n1,x,2\n", "names column 'id' twice"),
        ("id,,prompt\n1,x,2\n", r"names column '' \(empty\)"),
    ],
)
def test_a_csv_without_a_usable_header_is_named(tmp_path: Path, chat_model: Path, text: str, message: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        planned(job_over(path), chat_model)


def test_a_quote_that_swallows_rows_refuses_the_file(
    tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,prompt\n1,fine\n2,"open\n' + "3,x\n" * 1000)
    with pytest.raises(SourceError, match=r"line 3: a quote is opened here .* rows up to line 1003 cannot be told"):
        planned(job_over(path), chat_model)
    path.write_text('id,prompt\n1,fine\n2,"open\n' + "3,x\n" * 10 + '4,"closed" by chance\n')
    with pytest.raises(SourceError, match=r"line 3: a quote is opened here .* rows up to line 14 cannot be told"):
        planned(job_over(path), chat_model)
    path.write_text('id,prompt\n1,fine\n2,"cut off')
    assert planned(job_over(path), chat_model).errors == [(3, "malformed_csv")]  # only this row is touched
    path.write_text('id,prompt\n1,fine\n2,"open\n' + "3,x\n" * 1000)
    monkeypatch.setattr("pipeline.source.csv_file.MAX_FIELD_CHARS", 100)
    with pytest.raises(SourceError, match="line 3: a quote is opened here and never closed"):
        planned(job_over(path), chat_model)


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
def test_a_header_that_is_not_utf8_is_named(tmp_path: Path, chat_model: Path, encoding: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes("id,prénom,prompt\n1,a,b\n".encode(encoding))
    with pytest.raises(SourceError, match="the header line is not UTF-8"):
        planned(job_over(path), chat_model)


# --- Hostile shapes


@pytest.mark.parametrize("levels", [65, 130, 500, 5000])
@pytest.mark.parametrize("shape", ["{}", "[]"])
def test_rows_nested_too_deeply_fail_alone(tmp_path: Path, chat_model: Path, levels: int, shape: str) -> None:
    opening = '{"a":' if shape == "{}" else "["
    deep = opening * levels + "1" + shape[1] * levels
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"id": "good", "prompt": "x"}}\n{{"id": "deep", "prompt": "x", "m": {deep}}}\n')
    got = planned(job_over(path), chat_model)
    assert list(got.by_id()) == ["good"]
    assert got.errors == [(2, "nested_too_deeply")]


def test_nesting_within_the_limit_is_carried(tmp_path: Path, chat_model: Path) -> None:
    value: Any = "core"
    for _ in range(60):
        value = {"a": value}
    path = write_jsonl(tmp_path / "in.jsonl", [{"id": "1", "prompt": "x", "m": value}])
    assert planned(job_over(path), chat_model).by_id()["1"]["m"] == value


def test_a_folder_that_links_to_itself_gives_its_rows_once(tmp_path: Path, chat_model: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "no id"}\n')
    (folder / "self").symlink_to(".")
    (folder / "b.jsonl").symlink_to("a.jsonl")
    assert len(planned(job_over(folder), chat_model).rows) == 1


# --- Parquet


def test_parquet_columns_keep_their_types_and_every_digit(tmp_path: Path, chat_model: Path) -> None:
    day = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "id": pa.array([9007199254740993, 2**63 - 1], pa.int64()),
            "prompt": pa.array(["One", "Two"], pa.large_string()),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
            "big": pa.array([9007199254740993, None], pa.int64()),
            "day": pa.array([day, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([[], ["a"]], pa.large_list(pa.large_string())),
            "meta": pa.array([{"a": {"b": [1]}}, None], pa.struct([("a", pa.struct([("b", pa.list_(pa.int16()))]))])),
            "blob": pa.array([b"\x00\xff", None], pa.large_binary()),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    got = planned(job_over(tmp_path / "in.parquet"), chat_model)
    assert got.plan.carried.types == [
        pa.string(),
        pa.string(),
        pa.int64(),
        pa.timestamp("us", "UTC"),
        pa.list_(pa.string()),
        pa.struct([("a", pa.struct([("b", pa.list_(pa.int16()))]))]),
        pa.binary(),
    ]
    first = got.by_id()["9007199254740993"]
    assert (first["big"], first["day"], first["tags"], first["meta"]) == (9007199254740993, day, [], {"a": {"b": [1]}})
    assert (first["kind"], first["blob"]) == ("x", b"\x00\xff")
    assert got.by_id()[str(2**63 - 1)]["big"] is None


def test_parquet_files_of_one_folder_share_a_schema(tmp_path: Path, chat_model: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(
        pa.table({"prompt": ["a"], "x": pa.array([1], pa.int32()), "tags": pa.array([None], pa.null())}),
        folder / "1.parquet",
    )
    pq.write_table(
        pa.table({"prompt": ["b"], "x": pa.array([2**40]), "tags": [["t"]], "mixed": [1]}), folder / "2.parquet"
    )
    pq.write_table(pa.table({"prompt": ["c"], "mixed": ["one"]}), folder / "3.parquet")
    got = planned(job_over(folder), chat_model)
    rows = sorted(got.rows, key=lambda row: row["_ordinal"])
    assert [(row["prompt"], row["x"], row["tags"], row["mixed"]) for row in rows] == [
        ("a", 1, None, None),
        ("b", 2**40, ["t"], "1"),
        ("c", None, None, '"one"'),
    ]
    assert [row["_source_line"] for row in rows] == [1, 1, 1]
    assert got.plan.json_columns == ["mixed"]


def test_messages_from_parquet(tmp_path: Path, chat_model: Path) -> None:
    messages = [{"role": "user", "content": "Hi", "name": None}]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "in.parquet")
    write_jsonl(tmp_path / "in.jsonl", [{"messages": [{"role": "user", "content": "Hi"}]}])
    columnar, lines = (planned(job_over(tmp_path / name), chat_model).rows[0] for name in ("in.parquet", "in.jsonl"))
    assert columnar["_prompt_token_ids"] == lines["_prompt_token_ids"]


def test_float_ids_of_parquet_are_bad_ids(tmp_path: Path, chat_model: Path) -> None:
    pq.write_table(pa.table({"id": [1.0, None], "prompt": ["a", "b"]}), tmp_path / "in.parquet")
    got = planned(job_over(tmp_path / "in.parquet"), chat_model)
    assert got.errors == [(1, "bad_id"), (2, "missing_id")]


def test_a_parquet_file_with_a_column_twice_is_named(tmp_path: Path, chat_model: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["prompt", "prompt"]), path)
    with pytest.raises(SourceError, match="has two columns named 'prompt'"):
        planned(job_over(path), chat_model)


def test_broken_parquet_is_named(tmp_path: Path, chat_model: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(SourceError, match=r"in\.parquet as Parquet"):
        planned(job_over(tmp_path / "in.parquet"), chat_model)


# --- Folders and globs


def test_a_folder_is_read_in_name_order_without_markers(tmp_path: Path, chat_model: Path) -> None:
    folder = tmp_path / "rows"
    (folder / "sub").mkdir(parents=True)
    (folder / "_temporary").mkdir()
    write_jsonl(folder / "_temporary" / "e.jsonl", [{"id": "e", "prompt": "x"}])
    write_jsonl(folder / "b.jsonl", [{"id": "b", "prompt": "x"}])
    write_jsonl(folder / "a.jsonl", [{"id": "a", "prompt": "x"}])
    write_jsonl(folder / "sub" / "c.jsonl", [{"id": "c", "prompt": "x"}])
    write_jsonl(folder / "_half.jsonl", [{"id": "d", "prompt": "x"}])
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.parquet").touch()
    (folder / "README.md").touch()
    got = planned(job_over(folder), chat_model)
    assert [row["_id"] for row in sorted(got.rows, key=lambda row: row["_ordinal"])] == ["a", "b", "c"]
    assert [Path(each["path"]).name for each in got.plan.sources] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert got.plan.warnings == (f"1 files with another ending are not read, {folder}/README.md first",)


def test_globs_and_lists_name_files_once(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.csv", "deep/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")

    def found(*patterns: str) -> list[str]:
        files = open_source(job_over(patterns), tmp_path).files
        return [str(Path(file.path).relative_to(tmp_path)) for file in files]

    assert found("*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert found("**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/d.jsonl"]
    assert found("b.jsonl", "*.jsonl") == ["b.jsonl", "a.jsonl"]
    assert found("deep") == ["deep/d.jsonl"]


def test_two_formats_in_one_source_are_refused(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=r"two formats: .*a\.jsonl and .*b\.parquet"):
        open_source(job_over(tmp_path), tmp_path)


@pytest.mark.parametrize("path", ["gone.jsonl", "*.jsonl", "empty"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no such file, folder or match"):
        open_source(job_over(path), tmp_path)


@pytest.mark.parametrize("name", ["in.jsonl", "two words ü.jsonl"])
def test_a_file_may_be_named_by_its_url(tmp_path: Path, name: str) -> None:
    path = write_jsonl(tmp_path / name, [{"prompt": "x"}])
    for url in (path.as_uri(), f"file://localhost{path}", f"{tmp_path.as_uri()}/*.jsonl", tmp_path.as_uri()):
        [file] = open_source(job_over(url), Path("/elsewhere")).files
        assert file.path == str(path)


@pytest.mark.parametrize(
    "path", ["gs://bucket/in.jsonl", "https://host/in.jsonl", "hdfs://host/folder", "file://host/in.jsonl"]
)
def test_another_place_than_disk_and_s3_is_refused_by_name(tmp_path: Path, path: str) -> None:
    with pytest.raises(SourceError, match=rf"{path}: \w+:// is not read; use s3://bucket/key, file:///path or a path"):
        open_source(job_over(path), tmp_path)


def test_an_unknown_ending_needs_a_format(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.txt", [{"prompt": "x"}])
    with pytest.raises(SourceError, match=r"rows\.txt: what format is it\? Set source\.format"):
        planned(job_over(path), chat_model)
    assert planned(job_over(path, source={"format": "jsonl"}), chat_model).plan.num_rows == 1


def test_a_format_given_picks_its_files(tmp_path: Path, chat_model: Path) -> None:
    for ending in ("jsonl", "parquet", "csv"):
        save(tmp_path, f"in.{ending}")
    got = planned(job_over(tmp_path, source={"format": "csv"}), chat_model)
    assert {row["_source_file"] for row in got.rows} == {f"{tmp_path}/in.csv"}
    assert got.plan.warnings == (f"2 files with another ending are not read, {tmp_path}/in.jsonl first",)


def test_a_limit_reads_the_first_rows_only(tmp_path: Path, chat_model: Path) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"id": f"{number}-{n}", "prompt": "x"} for n in range(4)])
    got = planned(job_over(tmp_path, source={"limit": 9}).limited(6), chat_model)
    assert set(got.by_id()) == {"0-0", "0-1", "0-2", "0-3", "1-0", "1-1"}
    assert got.plan.job["source"]["limit"] == 6
    pq.write_table(pa.table({"prompt": ["x"] * 10}), tmp_path / "in.parquet")
    assert planned(job_over(tmp_path / "in.parquet").limited(3), chat_model).plan.num_rows == 3
    (tmp_path / "in.csv").write_text("prompt\na,b\nc\nd\n")
    assert planned(job_over(tmp_path / "in.csv").limited(2), chat_model).errors == [(2, "malformed_csv")]


# --- Saved datasets


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    rows = [{"id": str(n), "prompt": f"Number {n}", "label": n % 2, "tags": ["t"] * (n % 3)} for n in range(30)]
    features = datasets.Features(
        id=datasets.Value("string"),
        prompt=datasets.Value("string"),
        label=datasets.ClassLabel(names=["even", "odd"]),
        tags=datasets.List(datasets.Value("string")),
    )
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(folder / "train"), num_shards=2)
    return folder


def test_a_saved_dataset_is_read_without_its_library(dataset: Path, chat_model: Path) -> None:
    got = planned(job_over(dataset / "train"), chat_model)
    rows = sorted(got.rows, key=lambda row: row["_ordinal"])
    assert [row["_id"] for row in rows] == [str(n) for n in range(30)]
    assert [(row["label"], row["tags"]) for row in rows] == [(n % 2, ["t"] * (n % 3)) for n in range(30)]
    assert rows[-1]["_source_file"].endswith("data-00001-of-00002.arrow")
    assert rows[-1]["_source_line"] == 15


def test_a_dataset_of_splits_wants_one_named(dataset: Path, chat_model: Path) -> None:
    (dataset / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match=f"holds the splits train, test; name one: {dataset}/train"):
        planned(job_over(dataset), chat_model)


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is no dataset folder of save_to_disk \(it has no state\.json\)"):
        open_source(job_over(tmp_path, source={"format": "hf_dataset"}), tmp_path)


def test_renaming_two_columns_to_one_name_is_the_jobs_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])
    job: Job = job_over(path, source={"rename": {"a": "c", "b": "c"}})
    with pytest.raises(ConfigError, match=r"source\.rename gives the name `c` twice"):
        open_source(job, tmp_path)


def test_parquet_texts_that_are_not_utf8_fail_their_row(tmp_path: Path, chat_model: Path) -> None:
    offsets, data = pa.py_buffer(bytes.fromhex("00000000 01000000 02000000 03000000")), pa.py_buffer(b"a\xffb")
    for name in ("prompt", "note"):
        broken = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
        columns = {"prompt": pa.array(["x", "y", "z"]), "note": pa.array(["x", "y", "z"])} | {name: broken}
        pq.write_table(pa.table(columns), tmp_path / "in.parquet")
        got = planned(job_over(tmp_path / "in.parquet"), chat_model)
        assert sorted(row["_source_line"] for row in got.rows) == [1, 3]
        assert got.errors == [(2, "invalid_utf8")]


@pytest.mark.parametrize("name", ["_file", "_json", "_raw", "chunk"])
def test_columns_may_bear_names_that_only_sound_internal(tmp_path: Path, chat_model: Path, name: str) -> None:
    rows = [{"prompt": "x", name: "mine"}, {"prompt": 7, name: "bad"}]
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows)), chat_model)
    assert (got.rows[0][name], got.rejected[0][name]) == ("mine", "bad")
    (tmp_path / "in.csv").write_text(f"prompt,{name}\nx,mine\n,bad\n")
    got = planned(job_over(tmp_path / "in.csv"), chat_model)
    assert (got.rows[0][name], got.rejected[0][name]) == ("mine", "bad")


def test_a_source_may_have_nothing_to_carry(tmp_path: Path, chat_model: Path) -> None:
    (tmp_path / "in.csv").write_text("id\none\n\ntwo\nthree,four\n")
    got = planned(job_over(tmp_path / "in.csv", tasks={"default": {"template": "Say {{ id }}."}}), chat_model)
    assert set(got.by_id()) == {"one", "two"}
    assert (got.plan.carried.names, got.errors) == ([], [(5, "malformed_csv")])
