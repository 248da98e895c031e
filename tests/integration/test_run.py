"""The main road on a real local Ray: run, read while it runs, kill, resume, stop, refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from workplace import Workplace, wait_for

Rows = list[dict[str, Any]]

READ_WITH_RAY = """
import json, sys
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
ray.data.DataContext.get_current().enable_progress_bars = False
print("ready", flush=True)
print(json.dumps(sorted(row["row_id"] for row in ray.data.read_parquet(sys.stdin.readline().strip()).take_all())))
"""


def prompts(count: int, **columns: Any) -> Rows:
    return [{"id": f"row-{n:03d}", "prompt": f"Say something about the number {n}.", **columns} for n in range(count)]


def read_everywhere(data: Path) -> dict[str, list[str]]:
    """The row ids, sorted, as every reader sees them."""
    files = f"{data}/*.parquet"
    return {
        "pandas": sorted(pd.read_parquet(data)["row_id"]),
        "table": sorted(pq.read_table(data).column("row_id").to_pylist()),
        "dataset": sorted(ds.dataset(data, format="parquet").to_table().column("row_id").to_pylist()),
        "duckdb": sorted(row[0] for row in duckdb.sql(f"SELECT row_id FROM '{files}'").fetchall()),
        "polars": sorted(pl.scan_parquet(files).select("row_id").collect()["row_id"].to_list()),
    }


def texts(data: Path) -> dict[str, str]:
    table = pq.read_table(data)
    return dict(zip(table.column("row_id").to_pylist(), table.column("text").to_pylist(), strict=True))


def test_every_reader_sees_whole_shards_during_the_run_and_all_of_it_after(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(prompts(120), tasks={"default": {"sampling": {"max_tokens": 24, "ignore_eos": True}}})
    data = workplace.folder / "output" / "tiny-1" / "data"
    process = workplace.start("run", "job.yaml")
    wait_for(lambda: any(data.glob("*.parquet")) or process.poll() is not None)
    seen = []
    while process.poll() is None:
        seen.append(read_everywhere(data))
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    expected = [f"row-{n:03d}#0" for n in range(120)]
    for ids in (ids for reading in seen for ids in reading.values()):
        assert len(ids) == len(set(ids))
        assert set(ids) <= set(expected)
    assert len(seen) > 1
    final = read_everywhere(data)
    assert all(ids == expected for ids in final.values())
    footers = [pq.read_metadata(file).metadata[b"draftfleet.shard"] for file in data.glob("*.parquet")]
    assert {json.loads(raw)["num_rows"] for raw in footers} <= set(range(1, 120))
    schemas = {pq.read_schema(file).remove_metadata().to_string() for file in data.glob("*.parquet")}
    assert len(schemas) == 1


@pytest.mark.slow
def test_ray_data_reads_the_dataset_during_the_run(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(800), tasks={"default": {"sampling": {"max_tokens": 64, "ignore_eos": True}}})
    data = workplace.folder / "output" / "tiny-1" / "data"
    command = [sys.executable, "-c", READ_WITH_RAY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        process = workplace.start("run", "job.yaml")
        wait_for(lambda: len(list(data.glob("*.parquet"))) >= 3)
        told, _ = reader.communicate(f"{data}\n", timeout=120)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate()
    seen = json.loads(told.splitlines()[-1])
    assert 0 < len(seen) == len(set(seen)) < 800
    assert set(seen) <= set(texts(data))


@pytest.mark.slow
def test_the_text_does_not_depend_on_the_number_of_engines(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    sampling = {"max_tokens": 24, "temperature": 0.8, "n": 2, "ignore_eos": True}
    job = tiny_job(prompts(40), tasks={"default": {"sampling": sampling}})
    exact = ("--set", "model.dtype=float64")  # in float32 a batch of another size may round a near-tie the other way
    outputs = {}
    for workers in (1, 2):
        workplace.run("run", str(job), "--run", str(workers), "--set", f"cluster.workers={workers}", *exact)
        data = workplace.folder / "output" / f"tiny-{workers}" / "data"
        footers = [json.loads(pq.read_metadata(file).metadata[b"draftfleet.shard"]) for file in data.glob("*.parquet")]
        assert len({footer["incarnation"] for footer in footers}) == workers
        outputs[workers] = texts(data)
    assert len(outputs[1]) == 80
    assert outputs[1] == outputs[2]


@pytest.mark.slow
def test_killed_and_resumed_gives_the_text_of_an_undisturbed_run(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    sampling = {"max_tokens": 24, "temperature": 0.8, "n": 2, "ignore_eos": True}
    tiny_job(prompts(60), tasks={"default": {"sampling": sampling}})
    workplace.run("run", "job.yaml", "--run", "whole")
    data = workplace.folder / "output" / "tiny-killed" / "data"
    process = workplace.start("run", "job.yaml", "--run", "killed")
    wait_for(lambda: len(list(data.glob("*.parquet"))) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {file.name: file.stat().st_mtime_ns for file in data.glob("*.parquet")}
    assert before
    assert "tiny-killed: interrupted, last heartbeat" in workplace.run("status", "tiny-killed")
    out = workplace.run("run", "job.yaml", "--run", "killed", "--set", "engine.max_num_seqs=3")
    assert "resuming tiny-killed, " in out
    assert {file.name: file.stat().st_mtime_ns for file in data.glob("*.parquet")}.items() >= before.items()
    assert texts(data) == texts(workplace.folder / "output" / "tiny-whole" / "data")
    assert len(set(texts(data).values())) > 100  # samples of a row differ
    footers = [json.loads(pq.read_metadata(file).metadata[b"draftfleet.shard"]) for file in data.glob("*.parquet")]
    assert {(each["attempt"], each["execution"]["engine.max_num_seqs"]) for each in footers} == {(1, "8"), (2, "3")}


def test_over_a_finished_run_it_shows_and_over_a_changed_job_it_refuses(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(prompts(6))
    workplace.run("run", "job.yaml")
    data = workplace.folder / "output" / "tiny-1" / "data"
    before = {file: file.stat().st_mtime_ns for file in data.iterdir()}
    started = time.monotonic()
    out = workplace.run("run", "job.yaml", "-n", "1")
    assert "tiny-1: completed" in out
    assert "── default · row-" in out
    assert time.monotonic() - started < 30
    assert {file: file.stat().st_mtime_ns for file in data.iterdir()} == before
    out = workplace.run("run", "job.yaml", "--set", "tasks.default.sampling.temperature=0.7", code=2)
    assert "tasks.default.sampling.temperature: 0.0 -> 0.7" in out
    assert "--new-run" in out
    workplace.run("run", "job.yaml", "--set", "tasks.default.sampling.temperature=0.7", "--new-run")
    assert "tiny-2  completed  6/6" in workplace.run("runs")
    assert workplace.run("status").startswith("tiny-2: completed")
    workplace.write_rows(prompts(7))
    out = workplace.run("run", "job.yaml", "--run", "1", code=2)
    assert "rows.jsonl" in out


@pytest.mark.slow
def test_stop_cancels_and_resume_goes_on(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(400), tasks={"default": {"sampling": {"max_tokens": 64, "ignore_eos": True}}})
    data = workplace.folder / "output" / "tiny-1" / "data"
    process = workplace.start("run", "job.yaml")
    wait_for(lambda: any(data.glob("*.parquet")))
    out = workplace.run("stop")
    assert "tiny-1: cancelled" in out
    process.communicate(timeout=60)
    assert process.returncode == 4
    assert "resume: draftfleet resume" in workplace.run("status")
    assert 0 < len(texts(data)) < 400
    workplace.write_rows(prompts(1))  # the plan has them all
    out = workplace.run("resume", "--set", "tasks.default.deadline_s=600")
    assert "rows.jsonl has changed since the plan; the run goes on with the rows as they were planned" in out
    assert "resuming tiny-1, " in out
    assert len(texts(data)) == 400


def test_ctrl_c_interrupts_and_says_how_to_go_on(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(400), tasks={"default": {"sampling": {"max_tokens": 64, "ignore_eos": True}}})
    data = workplace.folder / "output" / "tiny-1" / "data"
    process = workplace.start("run", "job.yaml")
    wait_for(lambda: any(data.glob("*.parquet")))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "tiny-1: interrupted" in out
    assert "resume: draftfleet resume" in out


def test_bad_rows_become_error_rows_and_the_good_ones_complete(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    rows = [
        *prompts(5),
        {"id": "bad", "messages": [{"role": "robot", "content": "x"}]},
        {"id": "row-001", "prompt": "again"},
    ]
    tiny_job(rows, limits={"max_error_rate": 0.5})
    out = workplace.run("run", "job.yaml")
    assert "rows.jsonl:6: bad_role" in out
    assert "rows.jsonl:7: duplicate_id" in out
    assert "completed with errors" in out
    run = workplace.folder / "output" / "tiny-1"
    assert f"the error rows, with their reasons: {run}/errors" in out
    told = workplace.run("export", "--to", "jsonl")
    assert f"2 samples failed and are not in it; they lie, with the reasons, in {run}/errors" in told
    assert len(texts(run / "data")) == 5
    errors = pq.read_table(run / "errors" / "rejected.parquet").to_pylist()
    assert [(row["source_line"], row["error"]["code"]) for row in errors] == [(6, "bad_role"), (7, "duplicate_id")]
    assert json.loads((run / "_manifest.json").read_text())["usage"]["errors"] == {"bad_role": 1, "duplicate_id": 1}


def test_an_earlier_run_is_a_source(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(4, note="kept"), tasks={"default": {"sampling": {"max_tokens": 6, "n": 2, "temperature": 1.0}}})
    workplace.run("run", "job.yaml")
    job = tiny_job(
        prompts(4),
        workload="second",
        source={"path": "run:tiny-1"},
        tasks={"default": {"template": "Judge: {{ text }}", "sampling": {"max_tokens": 6, "n": 2, "temperature": 1.0}}},
    )
    workplace.run("run", str(job))
    table = pq.read_table(workplace.folder / "output" / "second-1" / "data")
    ids = table.column("row_id").to_pylist()
    assert len(ids) == len(set(ids)) == 16
    assert set(table.column("note").to_pylist()) == {"kept"}


def test_the_ledger_adds_up_and_the_footers_claim_no_more_than_was_busy(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(prompts(60), tasks={"default": {"sampling": {"max_tokens": 24}}})
    workplace.run("run", "job.yaml")
    run = workplace.folder / "output" / "tiny-1"
    engines = [json.loads(file.read_text()) for file in (run / "_ledger").glob("a1-*.json")]
    assert engines
    for engine in engines:
        assert sum(engine["seconds_ns"].values()) == engine["lifetime_ns"]
        assert engine["seconds_ns"]["teardown"] > 0  # the last account was written at the engine's end
    busy = sum(engine["seconds_ns"]["busy"] for engine in engines)
    rows = sum(pq.read_table(run / "data").column("engine_ns").to_pylist())
    usage = json.loads((run / "_manifest.json").read_text())["usage"]
    assert usage["engine_ns_ok"] == rows
    assert 0.9 * busy <= rows <= busy
    footer = json.loads(pq.read_metadata(next((run / "data").iterdir())).metadata[b"draftfleet.shard"])
    assert {"host.workers", "host.device", "versions.torch", "draft.policy.k", "engine.max_num_seqs"} <= footer[
        "execution"
    ].keys()
    driver = json.loads((run / "_ledger" / "driver-1.json").read_text())
    assert driver["state"] == "completed"
    assert driver["ended"] > driver["fleet_ready"] > driver["started"]


def test_the_identity_of_rounds_and_tokens_holds_on_every_row(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    repeating = [{"id": f"r{n}", "prompt": f"red green blue {n} " * 6} for n in range(20)]
    tiny_job(repeating, tasks={"default": {"draft": {"policy": "fixed", "k": 5}, "sampling": {"max_tokens": 40}}})
    workplace.run("run", "job.yaml")
    rows = pq.read_table(workplace.folder / "output" / "tiny-1" / "data").to_pylist()
    assert sum(row["speculation"]["num_accepted_draft_tokens"] for row in rows) > 0
    for row in rows:
        accepted = row["speculation"]["acceptance_histogram"]
        assert row["output_tokens"] + row["truncated_tokens"] == 1 + sum(
            (1 + j) * count for j, count in enumerate(accepted)
        )
