"""Each input format through a whole run, clashing columns through their rename, output kept apart from input, and jobs
that cannot work."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from workplace import Workplace

from configs.errors import ConfigError
from configs.load import load_job
from jobs.same_path import refuse_output_over_input

TINY_TASK = {"default": {"sampling": {"max_tokens": 4}}}


def dataset(workplace: Workplace, run: str) -> pa.Table:
    return pq.read_table(workplace.folder / "output" / run / "data").sort_by(
        [("source_file", "ascending"), ("source_line", "ascending"), ("sample_index", "ascending")]
    )


def test_columns_that_clash_are_refused_with_the_rename_that_then_works(workplace: Workplace, tiny_model: Path) -> None:
    """A CSV file of answers that somebody wants to have checked; `init` writes the rename as well."""
    with (workplace.folder / "answers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "status", "error"])
        writer.writerows(
            [["Is 7 prime?", "open", "none"], ['Say "hi",\nthen go.', "done", "E 3"], ["naïve 🙂", "", ""]]
        )
    settings = [f"--set=model.path={tiny_model}", "--set=model.dtype=float32", "--set=cluster.workers=1"]
    job = {"workload": "answers", "source": {"path": "answers.csv", "columns": {"prompt": "text"}}, "tasks": TINY_TASK}
    workplace.write_job(**job)
    started = time.monotonic()
    out = workplace.run("run", "job.yaml", *settings, code=2)
    assert time.monotonic() - started < 30
    assert "answers.csv: columns `text` and `error` bear names that the output uses" in out
    rename = out.partition("add to the job under source:\n")[2].partition("\n")[0]
    assert rename == "  rename: {text: input_text, error: input_error}"
    assert not any((workplace.folder / "output").glob("*/*"))

    workplace.write_job(**{**job, "source": {**job["source"], **yaml.safe_load(rename)}})
    workplace.run("run", "job.yaml", *settings)
    table = dataset(workplace, "answers-1")
    assert table.select(["input_text", "status", "input_error"]).to_pylist() == [
        {"input_text": "Is 7 prime?", "status": "open", "input_error": "none"},
        {"input_text": 'Say "hi",\nthen go.', "status": "done", "input_error": "E 3"},
        {"input_text": "naïve 🙂", "status": "", "input_error": ""},
    ]
    assert table.column("source_line").to_pylist() == [2, 3, 5]
    assert len(set(table.column("id").to_pylist())) == 3

    workplace.run("init", "answers.csv", "-o", "guessed.yaml")
    guessed = yaml.safe_load((workplace.folder / "guessed.yaml").read_text())
    assert guessed["source"]["rename"] == {"text": "input_text", "error": "input_error"}
    assert "3 rows, 3 samples" in workplace.run("plan", "guessed.yaml", "--dry-run", *settings)


def batch_line(custom_id: str, content: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 5, "metadata": {"batch": "7"}, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_an_openai_batch_goes_in_and_comes_out(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    lines = [
        batch_line("request-2", "One?", n=3, temperature=1.2, seed=5),
        batch_line("request-1", "Two?", max_completion_tokens=5),
        batch_line("request-tools", "Three?", tools=[{"type": "function"}]),
    ]
    tiny_job(lines, limits={"max_error_rate": 0.5})
    out = workplace.run("run", "job.yaml")
    assert "rows.jsonl:3: unsupported_key: body.tools" in out
    table = dataset(workplace, "tiny-1")
    assert table.column("row_id").to_pylist() == ["request-2#0", "request-2#1", "request-2#2", "request-1#0"]
    assert max(table.column("output_tokens").to_pylist()) <= 5
    assert table.column("metadata").to_pylist() == [{"batch": "7"}] * 4

    out = workplace.run(
        "export", "--to", "openai-jsonl", "--include-errors", "--order", "source", "--output", "out.jsonl"
    )
    assert "wrote out.jsonl" in out
    answers = [json.loads(line) for line in (workplace.folder / "out.jsonl").read_text().splitlines()]
    by_id = {answer["custom_id"]: answer for answer in answers}
    assert list(by_id) == ["request-2", "request-1", "request-tools"]
    choices = by_id["request-2"]["response"]["body"]["choices"]
    texts = table.column("text").to_pylist()
    assert [choice["message"]["content"] for choice in choices] == texts[:3]
    assert by_id["request-1"]["response"]["body"]["choices"][0]["message"]["content"] == texts[3]
    assert by_id["request-tools"]["response"] is None
    assert by_id["request-tools"]["error"]["code"] == "unsupported_key"

    workplace.run("export", "tiny-1", "--to", "csv", "--split-by-task")
    assert (workplace.folder / "tiny-1-csv" / "default.csv").read_text().count("request-2#") == 3


def test_a_saved_hugging_face_dataset(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    questions = datasets.Dataset.from_dict(
        {
            "question": [f"What is {n} + {n}?" for n in range(5)],
            "answer": [str(2 * n) for n in range(5)],
            "label": [0, 1, 1, 0, 1],
        },
        features=datasets.Features(
            {
                "question": datasets.Value("large_string"),
                "answer": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["even", "odd"]),
            }
        ),
    )
    questions.save_to_disk(str(workplace.folder / "questions"), num_shards=2)
    tiny_job([], source={"path": "questions", "columns": {"prompt": "question"}})
    workplace.run("run", "job.yaml", "--limit", "4")
    table = dataset(workplace, "tiny-1")
    assert table.select(["question", "answer", "label"]).to_pylist() == questions.select(range(4)).to_list()
    assert "source.limit: 4 -> null" in workplace.run("run", "job.yaml", code=2)  # all rows are another run


WAYS = {
    "same folder": ("data", "data"),
    "slash": ("data", "data/"),
    "link": ("data", "link"),
    "linked input": ("link/rows", "data/rows"),
    "inside": ("data", "data/out"),
    "parent": (".", "data"),
    "glob": ("data/*.jsonl", "data"),
    "deep glob": ("*/*/*/*/*.parquet", "output"),
    "any depth": ("**/*.parquet", "output"),
    "s3a": ("s3://bucket/data/", "s3a://bucket/data"),
    "s3 slashes": ("s3://bucket/data", "s3://bucket//data/"),
    "s3 glob": ("s3a://bucket/da*/**", "s3://bucket/data"),
}


@pytest.mark.parametrize("way", WAYS)
def test_output_over_input_is_refused(
    workplace: Workplace, tiny_job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (workplace.folder / "data").mkdir()
    (workplace.folder / "link").symlink_to(workplace.folder / "data")
    monkeypatch.chdir(workplace.folder)
    source, sink = WAYS[way]
    job = load_job(tiny_job([], source={"path": source}, sink={"path": sink}))
    with pytest.raises(ConfigError, match="output would be read as input"):
        refuse_output_over_input(job)


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("data/rows.jsonl", "data"),
        ("*.jsonl", "output"),
        ("data-?/*.jsonl", "data"),
        ("data", "data-out"),
        ("s3://bucket/in/*.jsonl", "s3://bucket/out"),
        ("s3://bucket/data.jsonl", "s3://bucket/data"),
        ("run:tiny-1", "output"),
    ],
)
def test_output_beside_input_is_fine(
    workplace: Workplace, tiny_job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, source: str, sink: str
) -> None:
    monkeypatch.chdir(workplace.folder)
    refuse_output_over_input(load_job(tiny_job([], source={"path": source}, sink={"path": sink})))


def test_every_verb_that_plans_refuses_output_over_input(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    (workplace.folder / "data").mkdir()
    (workplace.folder / "link").symlink_to(workplace.folder / "data")
    tiny_job([], source={"path": "data"}, sink={"path": "link/"})
    for verb in ("run", "plan"):
        assert "sink.path link/ lies in the input" in workplace.run(verb, "job.yaml", code=2)
    assert list((workplace.folder / "data").iterdir()) == []


IMPOSSIBLE = {
    "sink.columns=[txet]": "no column `txet`; did you mean text?",
    "cluster.num_gpus=1": "cluster.num_gpus is 1.0 and torch finds no CUDA device here",
    "cluster.address=127.0.0.1:9": "cluster.address 127.0.0.1:9: nobody answers there",
    "cluster.address=nonsense": "cluster.address nonsense: ",
    "model.path=nowhere/at/all": "is neither a folder nor a known model",
}


@pytest.mark.parametrize("setting", IMPOSSIBLE)
def test_a_job_that_cannot_work_is_told_before_an_engine_starts(
    workplace: Workplace, tiny_job: Callable[..., Path], setting: str
) -> None:
    if setting.startswith("cluster.num_gpus") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    tiny_job([{"prompt": "Hello."}])
    started = time.monotonic()
    out = workplace.run("run", "job.yaml", "--set", setting, code=2)
    assert time.monotonic() - started < 30
    assert IMPOSSIBLE[setting] in out
    assert "Traceback" not in out


def test_where_ray_cannot_put_its_sockets_says_what_to_set(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job([{"prompt": "Hello."}])
    deep = replace(workplace, env={**workplace.env, "RAY_TMPDIR": str(workplace.folder / ("x" * 80))})
    (workplace.folder / ("x" * 80)).mkdir()
    out = deep.run("run", "job.yaml", code=2)
    assert "set RAY_TMPDIR to a writable folder with a short path" in out
    assert "Traceback" not in out


def test_rows_that_are_all_bad_fail_the_run_without_an_engine(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job([{"prompt": ""}, {"question": "Hello?"}])
    out = workplace.run("run", "job.yaml", code=3)
    assert "rows.jsonl:1: empty_prompt" in out
    assert "rows.jsonl:2: missing_prompt" in out
    assert "tiny-1: failed" in out
    assert "starting engines" not in out
    assert "Read it with" not in out  # there is nothing to read
    assert "tiny-1  failed  0/0" in workplace.run("runs")
