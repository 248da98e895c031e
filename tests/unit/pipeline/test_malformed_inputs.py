"""What a new user brings: files that are not what their names say, and rows that are nearly right.

Each comes out as one sentence that names the file and the next step, or as error rows with their lines, and never as a
traceback. Bad rows of the expected kinds stand in `test_row_check.py`, hostile shapes in `test_source_formats.py`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import Planned, job_over, planned

from configs.errors import SourceError

GOOD = {"id": "good", "prompt": "Hello"}
LINES = b'{"id": "good", "prompt": "Hello"}\n' * 3


def parquet(rows: list[dict[str, Any]] | pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def plan_file(path: Path, data: bytes, chat_model: Path) -> Planned:
    path.write_bytes(data)
    return planned(job_over(path), chat_model)


# --- Files that are refused as a whole


NOT_PARQUET = (
    "cannot read {path} as Parquet (after row 0): Parquet magic bytes not found in footer. Either the file is "
    "corrupted or this is not a parquet file. Copy the file again; if it is of another format, say so by source.format"
)
AGAIN = "copy it again, or rename it if it is not compressed by gzip"
FILES = {
    "a JSON array on one line": (
        "rows.json",
        json.dumps([GOOD, GOOD]).encode(),
        "{path} is one JSON array, not JSON lines; convert it first: jq -c '.[]' FILE > FILE.jsonl",
    ),
    "a zip archive": (
        "rows.jsonl",
        b"PK\x03\x04\x14\x00" + LINES,
        "{path} is a zip archive; unpack it first",
    ),
    "compressed, without the ending": (
        "rows.jsonl",
        gzip.compress(LINES),
        "{path} is compressed by gzip; let its name end in .gz",
    ),
    "compressed by zstd, a CSV": (
        "rows.csv",
        pa.compress(b"id,prompt\n1,x\n", codec="zstd", asbytes=True),
        "{path} is compressed by zstd; let its name end in .zst",
    ),
    "Parquet by the name of CSV": (
        "rows.csv",
        parquet([GOOD]),
        "{path} is a Parquet file; let its name end in .parquet, or set source.format: parquet",
    ),
    "JSON lines by the name of Parquet": (
        "rows.parquet",
        LINES,
        NOT_PARQUET,
    ),
    "a pointer that Git LFS left in place of the file": (
        "rows.parquet",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        NOT_PARQUET,
    ),
    "a Parquet file whose download broke off": (
        "rows.parquet",
        parquet([GOOD] * 100)[:-20],
        NOT_PARQUET,
    ),
    "not compressed, whatever its ending": (
        "rows.jsonl.gz",
        LINES,
        "{path} cannot be read to its end: zlib inflate failed: incorrect header check; " + AGAIN,
    ),
    "compressed, and cut off": (
        "rows.jsonl.gz",
        gzip.compress(LINES * 1000)[:60],
        "{path} cannot be read to its end: Truncated compressed stream; " + AGAIN,
    ),
    "a CSV that tells Excel its separator": (
        "rows.csv",
        b"sep=,\nid,prompt\n1,Hi\n",
        "{path}: the header names column '' (empty); give every column a name of its own",
    ),
    "CSV with a header and nothing else": (
        "rows.csv",
        b"id,prompt\n",
        "source.path: {path} has no rows; nothing to do",
    ),
    "Parquet without rows": (
        "rows.parquet",
        parquet(pa.table({"prompt": pa.array([], pa.string())})),
        "source.path: {path} has no rows; nothing to do",
    ),
    "a byte-order mark and nothing else": (
        "rows.jsonl",
        b"\xef\xbb\xbf",
        "source.path: {path} has no rows; nothing to do",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used_is_named_with_the_next_step(tmp_path: Path, chat_model: Path, case: str) -> None:
    name, data, message = FILES[case]
    path = tmp_path / name
    with pytest.raises(SourceError) as raised:
        plan_file(path, data, chat_model)
    assert str(raised.value) == message.format(path=path)


def test_a_pipe_is_no_file(tmp_path: Path, chat_model: Path) -> None:
    """`<(zcat rows.jsonl.gz)` of a shell is one; reading it would wait for ever, or find it empty the second time."""
    os.mkfifo(tmp_path / "rows.jsonl")
    for path in (tmp_path / "rows.jsonl", Path("/dev/null")):
        with pytest.raises(SourceError) as raised:
            planned(job_over(path), chat_model)
        assert (
            str(raised.value) == f"source.path {path} is no file but a pipe or a device; write its rows to a file first"
        )


def test_a_link_that_leads_nowhere_is_not_there(tmp_path: Path, chat_model: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    with pytest.raises(SourceError) as raised:
        planned(job_over(tmp_path / "a.jsonl"), chat_model)
    assert str(raised.value) == f"source.path {tmp_path}/a.jsonl: no such file, folder or match"


def test_a_folder_that_bears_a_files_name_is_read_as_a_folder(tmp_path: Path, chat_model: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    (tmp_path / "rows.jsonl" / "part-0.jsonl").write_bytes(LINES[:34])
    assert planned(job_over(tmp_path / "rows.jsonl"), chat_model).plan.num_rows == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, chat_model: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES)
    path.chmod(0)
    with pytest.raises(SourceError) as raised:
        planned(job_over(path), chat_model)
    assert str(raised.value) == f"cannot read {path}: Permission denied"


# --- Files whose rows fail, with the line and the reason


PROMPT_IS_MESSAGES = (
    "column `prompt` is a list; a prompt is text; if these are messages, set source.columns.messages: prompt"
)
ROWS = {
    "an object over many lines": (
        "rows.json",
        json.dumps(GOOD, indent=1).encode(),
        [
            (1, "malformed_json", "the line is not JSON: Expecting property name enclosed in double quotes (column 2)"),
            (2, "malformed_json", "the line is not JSON: Extra data (column 6)"),
            (3, "malformed_json", "the line is not JSON: Extra data (column 10)"),
            (4, "malformed_json", "the line is not JSON: Expecting value (column 1)"),
        ],
    ),
    "what a server says instead of the file": (
        "rows.jsonl",
        b"<!DOCTYPE html>\n<html>404</html>\n",
        [
            (1, "malformed_json", "the line is not JSON: Expecting value (column 1)"),
            (2, "malformed_json", "the line is not JSON: Expecting value (column 1)"),
        ],
    ),
    "two objects on a line": (
        "rows.jsonl",
        b'{"prompt": "x"}{"prompt": "y"}\n',
        [(1, "malformed_json", "the line is not JSON: Extra data (column 16)")],
    ),
    "lines that end as on an old Macintosh": (
        "rows.jsonl",
        b'{"prompt": "x"}\r{"prompt": "y"}\r',
        [(1, "malformed_json", "the line is not JSON: Extra data (column 17)")],
    ),
    "what Python prints": (
        "rows.jsonl",
        b"{'prompt': 'x'}\n",
        [(1, "malformed_json", "the line is not JSON: Expecting property name enclosed in double quotes (column 2)")],
    ),
    "a list of rows' values": (
        "rows.jsonl",
        b'["a", "x"]\n["b", "y"]\n',
        [
            (1, "not_an_object", "the line is a list, not an object"),
            (2, "not_an_object", "the line is a list, not an object"),
        ],
    ),
    "Latin-1": (
        "rows.jsonl",
        '{"prompt": "é"}\n'.encode("latin1"),
        [(1, "invalid_utf8", "the line is not UTF-8 (byte 12)")],
    ),
    "UTF-16 without its mark": (
        "rows.jsonl",
        '{"prompt": "x"}\n'.encode("utf-16-le"),
        [
            (1, "malformed_json", "the line is not JSON: Expecting property name enclosed in double quotes (column 2)"),
            (2, "malformed_json", "the line is not JSON: Expecting value (column 1)"),
        ],
    ),
    "a raw NUL": (
        "rows.jsonl",
        b'{"prompt": "a\x00b"}\n',
        [(1, "malformed_json", "the line is not JSON: Invalid control character at (column 14)")],
    ),
    "a number of five thousand digits": (
        "rows.jsonl",
        b'{"prompt": "x", "m": ' + b"9" * 5000 + b"}\n",
        [
            (
                1,
                "malformed_json",
                "the line is not JSON: Exceeds the limit (4300 digits) for integer string conversion: value has 5000 "
                "digits; use sys.set_int_max_str_digits() to increase the limit",
            )
        ],
    ),
    "nested beyond the parser, on the first line": (
        "rows.jsonl",
        b'{"m": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        [(1, "nested_too_deeply", "the line nests more than 64 levels")],
    ),
    "a list nested beyond the parser, on the first line": (
        "rows.jsonl",
        b"[" * 5000 + b"]" * 5000,
        [(1, "nested_too_deeply", "the line nests more than 64 levels")],
    ),
    "CSV that is separated by semicolons": (
        "rows.csv",
        b"id;prompt\n1;Hi\n",
        [
            (
                2,
                "missing_prompt",
                "the row has no column `prompt` or `messages` and tasks.default has no template; "
                "its columns: id;prompt",
            )
        ],
    ),
    "CSV by the name of TSV": (
        "rows.tsv",
        b"id,prompt\n1,Hi\n",
        [
            (
                2,
                "missing_prompt",
                "the row has no column `prompt` or `messages` and tasks.default has no template; "
                "its columns: id,prompt",
            )
        ],
    ),
    "ids of Parquet that are lists": (
        "rows.parquet",
        parquet([{"id": [1, 2], "prompt": "x"}]),
        [(1, "bad_id", "column `id` is a list; an id is text or a whole number")],
    ),
    "prompts of Parquet that are messages": (
        "rows.parquet",
        parquet([{"prompt": [{"role": "user", "content": "Hi"}]}]),
        [(1, "bad_prompt", PROMPT_IS_MESSAGES)],
    ),
    "messages of Parquet that are one message": (
        "rows.parquet",
        parquet([{"messages": {"role": "user", "content": "Hi"}}]),
        [(1, "bad_messages", "messages is an object; it must be a list of {role, content}")],
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_cannot_be_read_are_told_with_their_line(tmp_path: Path, chat_model: Path, case: str) -> None:
    name, data, problems = ROWS[case]
    got = plan_file(tmp_path / name, data, chat_model)
    assert got.plan.num_rows == 0
    assert [(each.line, each.code, each.message) for each in got.plan.problems] == problems
    assert {each.file for each in got.plan.problems} == {str(tmp_path / name)}


# --- Rows that are nearly right


NEARLY: dict[str, tuple[Mapping[str, Any] | str, str, str]] = {
    "an id that is a list": (
        {"id": ["a"], "prompt": "x"},
        "bad_id",
        "column `id` is a list; an id is text or a whole number",
    ),
    "an id that is an object": (
        {"id": {"$oid": "5f"}, "prompt": "x"},
        "bad_id",
        "column `id` is an object; an id is text or a whole number",
    ),
    "a task that is a list": (
        {"id": "a", "task": ["code"], "prompt": "x"},
        "bad_task",
        "column `task` is a list; a task is a name under tasks",
    ),
    "a task that is a text": (
        {"id": "a", "task": "W" * 400, "prompt": "x"},
        "unknown_task",
        f"no task '{'W' * 38}… in the job; there are: default",
    ),
    "a prompt that is null": (
        {"id": "a", "prompt": None},
        "missing_prompt",
        "column `prompt` is null and tasks.default has no template",
    ),
    "another name for the prompt": (
        {"id": "a", "instruction": "x"},
        "missing_prompt",
        "the row has no column `prompt` or `messages` and tasks.default has no template; its columns: id, instruction",
    ),
    "a prompt that is a list of messages": (
        {"id": "a", "prompt": [{"role": "user", "content": "x"}]},
        "bad_prompt",
        PROMPT_IS_MESSAGES,
    ),
    "a role that is a number": (
        {"id": "a", "messages": [{"role": 1, "content": "x"}]},
        "bad_role",
        "messages[0].role is 1; it must be one of system, user, assistant",
    ),
    "a role of another API": (
        {"id": "a", "messages": [{"role": "human", "content": "x"}]},
        "bad_role",
        "messages[0].role is 'human'; it must be one of system, user, assistant",
    ),
    "the keys of ShareGPT": (
        {"id": "a", "messages": [{"from": "human", "value": "x"}]},
        "bad_role",
        "messages[0].role is None; it must be one of system, user, assistant",
    ),
    "parts that are texts": (
        {"id": "a", "messages": [{"role": "user", "content": ["x"]}]},
        "bad_content",
        "messages[0].content is a list; it must be text",
    ),
    "messages as JSON text that is cut off": (
        {"id": "a", "messages": '[{"role": "user"'},
        "bad_messages",
        "messages is text that cannot be read: the text is not JSON: Expecting ',' delimiter (column 17)",
    ),
    "messages as JSON text, nested beyond the parser": (
        {"id": "a", "messages": "[" * 5000 + "]" * 5000},
        "bad_messages",
        "messages is text that cannot be read: the text nests more than 64 levels",
    ),
    "messages as JSON text with half of an emoji": (
        {"id": "a", "messages": '[{"role": "user", "content": "\\ud83d"}]'},
        "bad_messages",
        "messages is text that cannot be read: the text holds half of a surrogate pair (U+D83D), cut text perhaps",
    ),
    "a conversation that nobody began": (
        {"id": "a", "messages": [{"role": "system", "content": "x"}]},
        "bad_messages",
        "the last message is from the system; the model answers a user",
    ),
    "max_tokens of nothing": (
        {"id": "a", "prompt": "x", "max_tokens": -1},
        "bad_sampling",
        "column `max_tokens`: Input should be greater than or equal to 1 (it is -1)",
    ),
    "max_tokens beyond any model": (
        {"id": "a", "prompt": "x", "max_tokens": 1e9},
        "context_length_exceeded",
        "max_tokens leaves no room for a prompt in the model's context; lower it",
    ),
    "max_tokens in words": (
        {"id": "a", "prompt": "x", "max_tokens": "twelve"},
        "bad_sampling",
        "column `max_tokens`: Input should be a valid integer, unable to parse string as an integer (it is 'twelve')",
    ),
    "a temperature in percent": (
        {"id": "a", "prompt": "x", "temperature": 70},
        "bad_sampling",
        "column `temperature`: Input should be less than or equal to 5 (it is 70)",
    ),
    "a stop that is an object": (
        {"id": "a", "prompt": "x", "stop": {"text": "END"}},
        "bad_sampling",
        "column `stop`: Input should be a valid tuple (it is {'text': 'END'})",
    ),
    "more stops than are kept": (
        {"id": "a", "prompt": "x", "stop": list("abcdefghijklmnopq")},
        "bad_sampling",
        "column `stop`: Tuple should have at most 16 items after validation, "
        "not 17 (it is ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'…)",
    ),
    "no samples": (
        {"id": "a", "prompt": "x", "n": 0},
        "bad_sampling",
        "column `n`: Input should be greater than or equal to 1 (it is 0)",
    ),
    "a value as long as a book": (
        {"id": "a", "prompt": "x", "temperature": "hot " * 100_000},
        "bad_sampling",
        "column `temperature`: Input should be a valid number, unable to parse string as a number "
        "(it is 'hot hot hot hot hot hot hot hot hot ho…)",
    ),
}


@pytest.mark.parametrize("case", NEARLY)
def test_a_row_that_is_nearly_right_is_told_what_is_wrong(tmp_path: Path, chat_model: Path, case: str) -> None:
    row, code, message = NEARLY[case]
    path = tmp_path / "rows.jsonl"
    got = plan_file(path, f"{json.dumps(GOOD)}\n{json.dumps(row)}\n".encode(), chat_model)
    assert [each["_id"] for each in got.rows] == ["good"]
    (problem,) = got.plan.problems
    assert (problem.file, problem.line, problem.code, problem.message) == (str(path), 2, code, message)


BATCH = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "x"}]},
}
BATCH_LINES = {
    "a url that is a list": (
        {"url": ["/v1/chat/completions"]},
        "unsupported_url",
        "\"POST ['/v1/chat/completions']\" is not served; POST to /v1/chat/completions or /v1/completions",
    ),
    "a url that is whole": (
        {"url": "https://example.com/v1/chat/completions"},
        "unsupported_url",
        "'POST https://example.com/v1/chat/compl… is not served; POST to /v1/chat/completions or /v1/completions",
    ),
    "a method in small letters": (
        {"method": "post"},
        "unsupported_url",
        "'post /v1/chat/completions' is not served; POST to /v1/chat/completions or /v1/completions",
    ),
    "a body that is text": ({"body": json.dumps(BATCH["body"])}, "bad_body", "`body` is not an object"),
    "a custom_id that is an object": (
        {"custom_id": {"n": 1}},
        "bad_id",
        "column `id` is an object; an id is text or a whole number",
    ),
    "a model that is a list": (
        {"body": {"model": ["m"], "messages": BATCH["body"]["messages"]}},
        "wrong_model",
        "body.model is ['m'], the job runs 'smollm2-135m-instruct'; if that is the one, set model.served_name to it",
    ),
}


@pytest.mark.parametrize("case", BATCH_LINES)
def test_a_batch_line_that_is_nearly_right_is_told_what_is_wrong(tmp_path: Path, chat_model: Path, case: str) -> None:
    change, code, message = BATCH_LINES[case]
    path = tmp_path / "rows.jsonl"
    lines = [{**BATCH, "custom_id": "good"}, {**BATCH, **change}]
    got = plan_file(path, "\n".join(map(json.dumps, lines)).encode(), chat_model)
    assert [each["_id"] for each in got.rows] == ["good"]
    (problem,) = got.plan.problems
    assert (problem.file, problem.line, problem.code, problem.message) == (str(path), 2, code, message)


def test_what_is_only_unusual_is_taken(tmp_path: Path, chat_model: Path) -> None:
    """Numbers as text, as CSV and many exporters write them; of a key that stands twice the last; five megabytes."""
    sampling = '"max_tokens": "12", "temperature": "0.5", "n": 2.0'
    row = f'{{"id": "a", "prompt": "first", "prompt": "last", {sampling}, "m": "{"m" * 5_000_000}"}}'
    got = plan_file(tmp_path / "rows.jsonl", row.encode(), chat_model).by_id()["a"]
    assert (got["prompt"], len(got["m"])) == ("last", 5_000_000)
    assert [got["_sampling"][name] for name in ("max_tokens", "temperature", "n")] == [12, 0.5, 2]
