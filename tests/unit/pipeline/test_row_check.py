"""Every kind of bad row becomes an error row with its line and code, and no good row suffers from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import job_over, planned, write_jsonl

from configs.errors import SourceError
from pipeline.excerpt import MAX_CHARS, excerpt

GOOD = {"id": "good", "prompt": "Hello"}
TASKS = {"code": {"template": "{{ request }}"}, "default": {"sampling": {"max_tokens": 16}}}

LINES: list[tuple[str | dict[str, Any], str]] = [
    ("{truncated", "malformed_json"),
    ('{"id": "a", "prompt": "x",}', "malformed_json"),
    ('{"id": "a", "prompt": NaN}', "malformed_json"),
    ('{"id": "a", "prompt": Infinity}', "malformed_json"),
    ('{"id": "a", "prompt": "x", "temperature": -Infinity}', "malformed_json"),
    ('["a", "list"]', "not_an_object"),
    ('"text"', "not_an_object"),
    ('{"id": "a", "prompt": "\\ud835"}', "lone_surrogate"),
    ({"id": "a"}, "missing_prompt"),
    ({"id": "a", "prompt": None}, "missing_prompt"),
    ({"id": "a", "messages": None}, "missing_prompt"),
    ({"id": "a", "prompt": "  \n"}, "empty_prompt"),
    ({"id": "a", "prompt": 7}, "bad_prompt"),
    ({"id": "a", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt_and_messages"),
    ({"id": "a", "messages": []}, "bad_messages"),
    ({"id": "a", "messages": {"role": "user"}}, "bad_messages"),
    ({"id": "a", "messages": "no JSON"}, "bad_messages"),
    ({"id": "a", "messages": ["x"]}, "bad_messages"),
    (
        {"id": "a", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        "bad_messages",
    ),
    ({"id": "a", "messages": [{"role": "robot", "content": "x"}]}, "bad_role"),
    ({"id": "a", "messages": [{"content": "x"}]}, "bad_role"),
    ({"id": "a", "messages": [{"role": "user", "content": 7}]}, "bad_content"),
    ({"id": "a", "messages": [{"role": "user", "content": None}]}, "bad_content"),
    ({"id": "a", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]}, "bad_content"),
    ({"id": "a", "messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "unsupported_key"),
    ({"id": "a", "messages": [{"role": "user", "content": ""}]}, "empty_prompt"),
    ({"id": None, "prompt": "x"}, "missing_id"),
    ({"id": "", "prompt": "x"}, "missing_id"),
    ({"id": 1.5, "prompt": "x"}, "bad_id"),
    ({"id": True, "prompt": "x"}, "bad_id"),
    ({"id": "a", "task": "cod", "prompt": "x"}, "unknown_task"),
    ({"id": "a", "task": 7, "prompt": "x"}, "bad_task"),
    ({"id": "a", "task": "code", "prompt": "x"}, "template_error"),
    ({"id": "a", "task": "code", "request": None}, "template_error"),
    ({"id": "a", "task": "code", "request": ""}, "empty_prompt"),
    ({"id": "a", "prompt": "x", "temperature": -1}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "temperature": "warm"}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "temperature": "Infinity"}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "top_p": "NaN"}, "bad_sampling"),
    ('{"id": "a", "prompt": "x", "temperature": 1e999}', "bad_sampling"),
    ({"id": "a", "prompt": "x", "max_tokens": True}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "max_tokens": 1.5}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "n": 1000}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "top_k": 2**31}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "seed": 2**63}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "stop": [""]}, "bad_sampling"),
    ({"id": "a", "prompt": "x", "stop": [1]}, "bad_sampling"),
    ({"id": "a", "prompt": "word " * 600}, "context_length_exceeded"),
    ({"id": "a", "prompt": "x", "max_tokens": 512}, "context_length_exceeded"),
    ({"id": "a", "prompt": "forbidden"}, "chat_template_error"),
    ({"id": "good", "prompt": "again"}, "duplicate_id"),
]


def test_every_bad_line_is_one_error_with_its_line(tmp_path: Path, chat_model: Path) -> None:
    lines = [json.dumps(GOOD), *(line if isinstance(line, str) else json.dumps(line) for line, _ in LINES)]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines))
    got = planned(job_over(source, tasks=TASKS), chat_model)
    assert [row["_id"] for row in got.rows] == ["good"]
    assert got.errors == [(number, code) for number, (_, code) in enumerate(LINES, 2)]
    assert sum(got.plan.rejected.values()) == got.plan.num_rejected == len(LINES)
    assert {(problem.line, problem.code) for problem in got.plan.problems} == set(got.errors)
    assert all(problem.file == str(source) and problem.message for problem in got.plan.problems)
    for row in got.rejected:
        assert row["source_file"] == str(source)
        assert row["row_id"] is None
        assert row["error"] | {"message": "", "code": ""} == {
            "stage": "plan",
            "code": "",
            "message": "",
            "retryable": False,
            "attempt": 0,
        }


def test_an_id_that_an_earlier_file_holds_is_refused(tmp_path: Path, chat_model: Path) -> None:
    first = write_jsonl(tmp_path / "1.jsonl", [{"id": "x", "prompt": "One"}, {"id": "a", "prompt": "Two"}])
    second = write_jsonl(
        tmp_path / "2.jsonl", [{"id": "b", "prompt": "x"}, {"id": "c"}, {"id": "a", "prompt": "Three"}]
    )
    got = planned(job_over(tmp_path), chat_model)
    assert {row["_id"]: row["prompt"] for row in got.rows} == {"x": "One", "a": "Two", "b": "x"}
    (found,) = (problem for problem in got.plan.problems if problem.code == "duplicate_id")
    assert (found.file, found.line) == (str(second), 3)
    assert found.message == f"id 'a' stands already in {first}, line 2"
    places = [(row["source_file"], row["source_line"], row["error"]["code"]) for row in got.rejected]
    assert places == [(str(second), 2, "missing_prompt"), (str(second), 3, "duplicate_id")]


def test_a_rejected_row_keeps_what_is_known_of_it(tmp_path: Path, chat_model: Path) -> None:
    rows = [
        {"id": "a", "prompt": "x", "page": 1},
        {"id": "b", "task": "code", "prompt": "x", "page": 2},
        {"id": "c", "prompt": 7, "page": "three", "other": []},
    ]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    with source.open("a") as file:
        file.write("{nonsense\n")
    got = planned(job_over(source, tasks={"code": {"template": "{{ request }}"}}), chat_model)
    known = {row["source_line"]: row for row in got.rejected}
    assert (known[2]["id"], known[2]["task"], known[2]["prompt"], known[2]["page"]) == ("b", "code", "x", 2)
    assert known[2]["raw"] is None
    # What does not fit the run's columns stays in the raw line.
    assert (known[3]["id"], known[3]["prompt"], known[3]["page"]) == ("c", None, None)
    assert json.loads(known[3]["raw"]) == rows[2]
    assert (known[4]["id"], known[4]["raw"]) == (None, "{nonsense")


def test_a_bad_row_does_not_spoil_a_columns_type(tmp_path: Path, chat_model: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x", "page": 1}, {"prompt": 7, "page": "one"}])
    got = planned(job_over(source), chat_model)
    assert str(got.plan.carried.field("page").type) == "int64"
    assert got.plan.warnings == ()


def test_invalid_utf8_is_one_rows_error(tmp_path: Path, chat_model: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"prompt": "one"}\n{"prompt": "\xff"}\n{"prompt": "two"}\n')
    got = planned(job_over(source), chat_model)
    assert got.plan.num_rows == 2
    assert got.errors == [(2, "invalid_utf8")]


def test_sampling_columns_override_the_task(tmp_path: Path, chat_model: Path) -> None:
    overrides = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 2**63 - 1,
    }
    rows = [
        {"id": "all", "prompt": "x", **overrides, "max_tokens": 5, "stop": ["a", "é"], "n": 3},
        {"id": "one", "prompt": "x", "stop": "b", "temperature": None},
        {"id": "none", "prompt": "x"},
    ]
    task = {"sampling": {"max_tokens": 9, "top_k": 3, "stop_token_ids": [4]}}
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows), tasks={"default": task}), chat_model).by_id()
    every = got["all"]["_sampling"]
    assert {name: every[name] for name in overrides} == overrides
    assert (every["max_tokens"], every["stop"], every["n"], every["stop_token_ids"]) == (5, ["a", "é"], 3, [4])
    assert got["one"]["_sampling"]["stop"] == ["b"]
    assert got["one"]["_sampling"]["temperature"] == 0.0
    assert got["none"]["_sampling"] | {"max_tokens": 9, "top_k": 3, "seed": None} == got["none"]["_sampling"]


def test_ids_are_kept_as_text_to_the_last_digit(tmp_path: Path, chat_model: Path) -> None:
    rows = [
        {"id": 9007199254740993, "prompt": "x"},
        {"id": "9007199254740992", "prompt": "x"},
        {"id": "é#1", "prompt": "x"},
    ]
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows)), chat_model)
    assert set(got.by_id()) == {"9007199254740993", "9007199254740992", "é#1"}
    assert "id" not in got.plan.carried.names


def test_another_id_column_is_carried_too(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"uid": 9007199254740993, "prompt": "x"}, {"uid": None, "prompt": "y"}]
    job = job_over(write_jsonl(tmp_path / "in.jsonl", rows), source={"columns": {"id": "uid"}})
    got = planned(job, chat_model)
    assert [(row["_id"], row["uid"]) for row in got.rows] == [("9007199254740993", 9007199254740993)]
    assert got.errors == [(2, "missing_id")]


def test_without_ids_the_content_names_the_row(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"prompt": "same", "page": 1}, {"prompt": "same", "page": 2}, {"prompt": "other"}]
    first = planned(job_over(write_jsonl(tmp_path / "a.jsonl", rows)), chat_model)
    again = planned(job_over(write_jsonl(tmp_path / "b.jsonl", rows)), chat_model)
    ids = [row["_id"] for row in sorted(first.rows, key=lambda row: row["_ordinal"])]
    assert set(again.by_id()) == set(ids)
    assert [each.rpartition("-")[2] for each in ids] == ["0", "1", "2"]
    assert ids[0].rpartition("-")[0] == ids[1].rpartition("-")[0] != ids[2].rpartition("-")[0]


def test_messages_keep_their_own_system_prompt(tmp_path: Path, chat_model: Path) -> None:
    user = {"role": "user", "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]}
    rows = [
        {"id": "own", "messages": [{"role": "system", "content": "Mine."}, user]},
        {"id": "ours", "messages": [user]},
        {"id": "text", "messages": json.dumps([user])},
    ]
    job = job_over(write_jsonl(tmp_path / "in.jsonl", rows), tasks={"default": {"system": "Ours {{ id }}."}})
    got = planned(job, chat_model)
    assert got.plan.num_rejected == 0
    own, ours = got.by_id()["own"], got.by_id()["ours"]
    assert len(own["_prompt_token_ids"]) > 0
    assert own["_prompt_token_ids"] != ours["_prompt_token_ids"]
    assert got.plan.json_columns == ["messages"]  # a list in two rows, text in the third


def test_clashing_columns_are_refused_and_the_rename_works(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"text": "Tell me.", "status": "new", "error": None}, {"text": "And this.", "status": "old", "error": "x"}]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    with pytest.raises(SourceError, match=r"rename: \{text: input_text, error: input_error\}"):
        planned(job_over(source), chat_model)
    # Columns and templates may name a renamed column either way.
    for prompt, template in (("text", "{{ text }}"), ("input_text", "{{ input_text }}")):
        rename = {"text": "input_text", "error": "input_error"}
        by_column = job_over(source, source={"rename": rename, "columns": {"prompt": prompt}})
        by_template = job_over(source, source={"rename": rename}, tasks={"default": {"template": template}})
        for job in (by_column, by_template):
            got = planned(job, chat_model)
            assert got.plan.carried.names == ["input_text", "status", "input_error"]
            assert [row["input_text"] for row in sorted(got.rows, key=lambda row: row["_ordinal"])] == [
                "Tell me.",
                "And this.",
            ]


def test_a_new_name_must_be_free(tmp_path: Path, chat_model: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "a", "prompt": "b"}])
    with pytest.raises(SourceError, match="gives `text` the name `prompt`, which the input has already"):
        planned(job_over(source, source={"rename": {"text": "prompt"}}), chat_model)


def test_a_clash_far_into_the_file_is_refused_too(tmp_path: Path, chat_model: Path) -> None:
    rows = [*({"prompt": "x"} for _ in range(50)), {"prompt": "x", "finish_reason": "y"}]
    with pytest.raises(SourceError, match=r"rename: \{finish_reason: input_finish_reason\}"):
        planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows)), chat_model)


LONG = "Write a poem about the sea, then keep to yourself that " + "I was here " * 20


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "x", "task": LONG},
        {"prompt": "x", "temperature": LONG},
        {"prompt": "x", "stop": {LONG: LONG}},
        {"prompt": "x", "max_tokens": 10**200},
        {"messages": [{"role": LONG, "content": "x"}]},
        {"messages": [{"role": [LONG], "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
    ],
)
def test_messages_quote_only_the_beginning_of_a_value(tmp_path: Path, chat_model: Path, row: dict[str, Any]) -> None:
    """A column of another name may be a prompt, and messages go to the console, logs and the plan."""
    rows = [row | {"id": "a"}, {"id": "b", "prompt": "fine"}]
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows)), chat_model)
    [problem] = got.plan.problems
    assert problem.line == 1
    assert len(problem.message) < 250
    assert LONG[:20] in problem.message or "1000000" in problem.message
    assert "keep to yourself" not in got.plan.to_json()


@given(st.one_of(st.text(), st.integers(), st.lists(st.text()), st.dictionaries(st.text(), st.text())))
def test_an_excerpt_is_short_and_of_a_short_value_the_whole(value: object) -> None:
    shown = excerpt(value)
    assert len(shown) <= MAX_CHARS
    assert (shown == repr(value)) == (len(repr(value)) <= MAX_CHARS)
