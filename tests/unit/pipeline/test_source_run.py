"""The ok rows of an earlier run as a source: a row per sample, the earlier text at hand, no clash and no duplicate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import job_over, planned, write_jsonl

from configs.errors import SourceError
from configs.job import Job
from pipeline.layout import MANIFEST, data_key
from pipeline.plan import make_plan, read_planned
from pipeline.schema import output_schema
from pipeline.store.local import LocalStore

ROWS = [
    {"id": "a", "task": "code", "prompt": "One", "n": 2, "temperature": 0.5, "tags": ["x"]},
    {"id": "b", "task": "chat", "prompt": "Two", "n": 2, "temperature": 0.5, "tags": []},
]
TASKS: dict[str, Any] = {"code": {}, "chat": {}}


def finish(folder: Path, model: Path, job: Job) -> Path:
    """Plan a run and write what an engine that always says `Answer <sample>.` would have."""
    store = LocalStore(str(folder))
    plan = make_plan(job, folder, model, store)
    for shard in plan.shards:
        rows = read_planned(store, plan.plan_hash, shard).to_pylist()
        out = [answered(row, sample) for row in rows for sample in range(row["_sampling"]["n"])]
        table = pa.Table.from_pylist(out, output_schema(plan.carried))
        path = folder / data_key(shard.task, shard.shard)
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
    store.put_if_absent(MANIFEST, b"{}")
    return folder


def answered(row: dict[str, Any], sample: int) -> dict[str, Any]:
    flags = dict.fromkeys(("text_repaired", "empty_output", "lossy"), False)
    return {
        **{name: value for name, value in row.items() if not name.startswith("_")},
        **flags,
        "row_id": f"{row['_id']}#{sample}",
        "id": row["_id"],
        "sample_index": sample,
        "task": row["_task"],
        "text": f"Answer {sample}.",
        "finish_reason": "stop",
        "output_tokens": 3,
        "truncated_tokens": 0,
        "source_file": row["_source_file"],
        "source_line": row["_source_line"],
    }


@pytest.fixture
def earlier(tmp_path: Path, chat_model: Path) -> Path:
    job = job_over(write_jsonl(tmp_path / "in.jsonl", ROWS), tasks=TASKS)
    return finish(tmp_path / "runs" / "w-1", chat_model, job)


def test_every_sample_is_a_row_with_the_earlier_text(earlier: Path, chat_model: Path) -> None:
    job = job_over(f"run:{earlier}", tasks={"default": {"template": "Judge {{ text }} for {{ prompt }} ({{ task }})"}})
    got = planned(job, chat_model)
    assert got.plan.num_rejected == 0
    assert set(got.by_id()) == {"a#0", "a#1", "b#0", "b#1"}
    row = got.by_id()["a#1"]
    assert {name: row[name] for name in got.plan.carried.names} == {
        "input_id": "a",
        "input_task": "code",
        "input_text": "Answer 1.",
        "prompt": "One",
        "n": 2,
        "temperature": 0.5,
        "tags": ["x"],
    }
    assert (row["_sampling"]["n"], row["_sampling"]["temperature"]) == (1, 0.0)
    assert "Judge Answer 0. for Two (chat)" in got.plan.first_prompts["default"]


def test_a_run_is_found_where_file_urls_lead(earlier: Path, chat_model: Path) -> None:
    below_sink = job_over("run:w-1", sink={"path": earlier.parent.as_uri()})
    for job in (below_sink, job_over(f"run:{earlier.as_uri()}")):
        assert planned(job, chat_model).plan.num_rows == 4


def test_a_task_is_kept_if_the_job_has_it(earlier: Path, chat_model: Path) -> None:
    got = planned(job_over(f"run:{earlier}", tasks={"code": {}}), chat_model)
    assert {row["_id"]: row["_task"] for row in got.rows} == {
        "a#0": "code",
        "a#1": "code",
        "b#0": "default",
        "b#1": "default",
    }


def test_a_run_of_a_run_of_a_run_finds_free_names(earlier: Path, chat_model: Path, tmp_path: Path) -> None:
    second = finish(tmp_path / "runs" / "w-2", chat_model, job_over(f"run:{earlier}"))
    got = planned(job_over(f"run:{second}", tasks={"default": {"template": "{{ text }}|{{ input_text }}"}}), chat_model)
    row = got.by_id()["a#0#0"]
    assert (row["input_id"], row["input_id_2"], row["input_text_2"]) == ("a", "a#0", "Answer 0.")


def test_ones_own_rename_goes_first(earlier: Path, chat_model: Path) -> None:
    job = job_over(f"run:{earlier}", source={"rename": {"text": "answer"}, "columns": {"prompt": "text"}})
    got = planned(job, chat_model)
    assert got.by_id()["a#0"]["answer"] == "Answer 0."
    assert "Answer 0." in got.plan.first_prompts["default"]


def test_a_run_is_found_by_its_id_below_the_sink(
    earlier: Path, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = planned(job_over("run:w-1", sink={"path": "runs"}), chat_model)
    assert got.plan.num_rows == 4
    with pytest.raises(SourceError, match="run:w-9: no run in"):
        planned(job_over("run:w-9", sink={"path": "runs"}), chat_model)


def test_an_unfinished_run_is_warned_of(earlier: Path, chat_model: Path) -> None:
    (earlier / MANIFEST).unlink()
    plan = planned(job_over(f"run:{earlier}"), chat_model).plan
    assert f"run:{earlier} is not finished; its rows so far are read" in plan.warnings
    for file in (earlier / "data").iterdir():
        file.unlink()
    with pytest.raises(SourceError, match=r"no row of .* is done yet"):
        planned(job_over(f"run:{earlier}"), chat_model)


def test_a_run_without_texts_is_no_source(earlier: Path, chat_model: Path) -> None:
    for file in (earlier / "data").iterdir():
        pq.write_table(pq.read_table(file).drop_columns(["text"]), file)
    with pytest.raises(SourceError, match=r"its sink\.columns dropped `text`"):
        planned(job_over(f"run:{earlier}"), chat_model)


def test_a_run_stands_alone(earlier: Path, chat_model: Path) -> None:
    with pytest.raises(SourceError, match="stands alone"):
        planned(job_over([f"run:{earlier}", "other.jsonl"]), chat_model)
