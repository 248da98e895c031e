"""OpenAI batch files: what they ask for is done or refused with the key named, never dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planning import Planned, job_over, planned

MESSAGES = [{"role": "user", "content": "Hello"}]


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    content = {"messages": MESSAGES} if url.endswith("chat/completions") else {"prompt": "Hello"}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**content, **body}}


def plan_lines(tmp_path: Path, chat_model: Path, *lines: dict[str, Any] | str, **sections: Any) -> Planned:
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
    return planned(job_over(path, **sections), chat_model)


def test_a_batch_is_recognized_and_its_sampling_applies(tmp_path: Path, chat_model: Path) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "n": 2, "stop": "end"}
    got = plan_lines(
        tmp_path,
        chat_model,
        line("a", max_tokens=5, metadata={"k": "v"}, user="u-1", **sampling),
        line("b", max_completion_tokens=6),
        line("c", max_tokens=7, max_completion_tokens=7, url="/v1/completions"),
    )
    rows = got.by_id()
    assert rows["a"]["_sampling"] | {**sampling, "stop": ["end"], "max_tokens": 5} == rows["a"]["_sampling"]
    assert [rows[name]["_sampling"]["max_tokens"] for name in "abc"] == [5, 6, 7]
    assert set(got.plan.carried.names) == {"messages", "metadata", "user", "prompt"}
    assert rows["a"]["messages"] == MESSAGES
    assert rows["a"]["metadata"] == {"k": "v"}
    assert rows["c"]["prompt"] == "Hello"


def test_what_asks_for_nothing_is_accepted(tmp_path: Path, chat_model: Path) -> None:
    neutral: dict[str, Any] = {
        "stream": False,
        "tools": [],
        "logprobs": None,
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "model": "folder/the-model",
    }
    got = plan_lines(tmp_path, chat_model, line("a", **neutral), model={"path": "folder/the-model"})
    assert got.plan.num_rejected == 0


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        ({"stream": True}, "unsupported_key", "body.stream"),
        ({"response_format": {"type": "json_object"}}, "unsupported_key", "body.response_format"),
        ({"tools": [{"type": "function"}]}, "unsupported_key", "body.tools"),
        ({"logprobs": True}, "unsupported_key", "body.logprobs"),
        ({"frequency_penalty": 0.5}, "unsupported_key", "body.frequency_penalty"),
        ({"temprature": 0.5}, "unsupported_key", "body.temprature"),
        ({"prompt": "x"}, "unsupported_key", "body.prompt"),
        ({"model": "gpt-x"}, "wrong_model", "'gpt-x'"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "unsupported_key", "body.max_completion_tokens"),
        ({"temperature": 9}, "bad_sampling", "temperature"),
        ({"messages": []}, "bad_messages", "messages"),
        ({"messages": None}, "missing_prompt", "messages"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, chat_model: Path, body: dict[str, Any], code: str, named: str
) -> None:
    got = plan_lines(tmp_path, chat_model, line("good"), line("bad", **body))
    assert set(got.by_id()) == {"good"}
    (error,) = got.rejected
    assert (error["id"], error["source_line"], error["error"]["code"]) == ("bad", 2, code)
    assert named in error["error"]["message"]


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"method": None}, "missing_key", "`method`"),
        ({"custom_id": ""}, "missing_key", "`custom_id`"),
        ({"url": "/v1/embeddings"}, "unsupported_url", "POST /v1/embeddings"),
        ({"method": "GET"}, "unsupported_url", "GET"),
        ({"body": ["x"]}, "bad_body", "`body`"),
        ({"priority": 1}, "unsupported_key", "`priority`"),
    ],
)
def test_a_broken_envelope_is_refused_by_name(
    tmp_path: Path, chat_model: Path, change: dict[str, Any], code: str, named: str
) -> None:
    got = plan_lines(tmp_path, chat_model, line("good"), {**line("bad"), **change})
    (error,) = got.rejected
    assert (error["source_line"], error["error"]["code"]) == (2, code)
    assert named in error["error"]["message"]
    assert error["raw"] is not None


def test_a_custom_id_twice_is_refused_the_second_time(tmp_path: Path, chat_model: Path) -> None:
    got = plan_lines(tmp_path, chat_model, line("same"), line("other"), line("same"))
    assert got.errors == [(3, "duplicate_id")]
    assert "line 1" in got.rejected[0]["error"]["message"]


def test_refusals_quote_only_the_beginning_of_a_value(tmp_path: Path, chat_model: Path) -> None:
    prompt = "Write a poem about the sea, then keep to yourself that " + "I was here " * 20
    got = plan_lines(
        tmp_path,
        chat_model,
        line("model", model=prompt),
        line("limits", max_tokens=prompt, max_completion_tokens=2),
        {**line("url"), "url": prompt},
        {**line("method"), "method": prompt},
    )
    assert len(got.plan.problems) == 4
    assert all("Write a poem" in problem.message for problem in got.plan.problems)
    assert "keep to yourself" not in got.plan.to_json()
