"""Rows that kill, hang or fail, on a real local Ray: they cost restarts, never the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from workplace import Workplace

pytestmark = pytest.mark.slow

POISONED_RUN = Path(__file__).with_name("poisoned_run.py")


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"id": f"row-{n}", "prompt": f"Say something about the number {n}."} for n in range(count)]


def poisoned_run(workplace: Workplace, kind: str, row_ids: str, *arguments: str, code: int = 0) -> str:
    process = subprocess.run(
        [sys.executable, str(POISONED_RUN), kind, row_ids, *arguments],
        cwd=workplace.folder,
        env=dict(workplace.env),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == code, f"exit {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process.stdout + process.stderr


def committed(run: Path) -> list[str]:
    return sorted(row for file in run.glob("data/*.parquet") for row in pq.read_table(file)["row_id"].to_pylist())


def texts(run: Path) -> dict[str, str]:
    rows = (row for file in run.glob("data/*.parquet") for row in pq.read_table(file).to_pylist())
    return {row["row_id"]: row["text"] for row in rows}


def errors(run: Path) -> list[dict[str, Any]]:
    return [row for file in run.glob("errors/*.parquet") for row in pq.read_table(file).to_pylist()]


def incarnations(run: Path) -> int:
    return len(list(run.glob("_ledger/a*.json")))


def test_one_deadly_row_of_a_thousand_becomes_one_error(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(1000), tasks={"default": {"sampling": {"max_tokens": 2}}})
    poisoned_run(workplace, "kill", "row-17", "run", "job.yaml")
    run = workplace.folder / "output" / "tiny-1"
    assert committed(run) == sorted(f"row-{n}#0" for n in range(1000) if n != 17)
    [row] = errors(run)
    assert (row["row_id"], row["source_line"]) == ("row-17#0", 18)
    assert (row["error"]["code"], row["error"]["stage"]) == ("engine_killed", "generate")
    assert incarnations(run) <= 12
    assert json.loads((run / "_manifest.json").read_text())["state"] == "completed_with_errors"


def test_more_deaths_than_the_job_allows_end_it(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(40), tasks={"default": {"sampling": {"max_tokens": 2}}}, limits={"max_engine_deaths": 1})
    out = poisoned_run(workplace, "kill", "row-17", "run", "job.yaml", code=1)
    assert "limits.max_engine_deaths" in out
    run = workplace.folder / "output" / "tiny-1"
    assert incarnations(run) <= 4
    assert "tiny-1: failed, last heartbeat" in workplace.run("status")
    workplace.run("resume")  # by engines that nothing kills
    assert len(committed(run)) == 40


def test_a_hung_engine_is_replaced_in_time(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    engine = {"max_num_seqs": 8, "stall_timeout_s": 4.0}
    tiny_job(prompts(60), tasks={"default": {"sampling": {"max_tokens": 2}}}, engine=engine)
    started = time.monotonic()
    poisoned_run(workplace, "hang-once", "row-17", "run", "job.yaml")
    assert (workplace.folder / "hung").exists()
    assert time.monotonic() - started < 60
    run = workplace.folder / "output" / "tiny-1"
    assert len(committed(run)) == 60
    assert incarnations(run) == 2


def test_engines_that_die_before_they_are_up_end_it_too(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job(prompts(4), limits={"max_engine_deaths": 1})
    out = poisoned_run(workplace, "kill", "warm-up", "run", "job.yaml", code=1)
    assert "limits.max_engine_deaths" in out
    assert 3 <= incarnations(workplace.folder / "output" / "tiny-1") <= 5


def test_an_engine_that_hangs_in_its_warm_up_is_replaced_in_time(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job(prompts(4), engine={"max_num_seqs": 8, "stall_timeout_s": 4.0})
    started = time.monotonic()
    poisoned_run(workplace, "hang-once", "warm-up", "run", "job.yaml")
    assert (workplace.folder / "hung").exists()
    assert time.monotonic() - started < 60
    run = workplace.folder / "output" / "tiny-1"
    assert len(committed(run)) == 4
    assert incarnations(run) == 2


def test_a_run_whose_rows_all_fail_stops_early(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    task = {"sampling": {"max_tokens": 64, "ignore_eos": True}, "deadline_s": 0.001}
    tiny_job(prompts(1000), tasks={"default": task})
    out = workplace.run("run", "job.yaml", code=3)
    assert "samples failed (timeout" in out
    assert "for example row-" in out
    run = workplace.folder / "output" / "tiny-1"
    assert len(committed(run)) + len(errors(run)) < 500
    assert "tiny-1: failed" in workplace.run("status")
    assert "resume: draftfleet resume" in workplace.run("status")


def test_rejected_rows_over_the_limit_end_it_before_any_engine(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tiny_job([*prompts(50), {"id": "bad", "prompt": ""}])
    assert "no engine was started" in workplace.run("plan", "job.yaml", "--dry-run", code=3)
    out = workplace.run("run", "job.yaml", code=3)
    assert "1 of 51 samples cannot even be started (empty_prompt 1)" in out
    run = workplace.folder / "output" / "tiny-1"
    assert incarnations(run) == 0
    assert [row["error"]["code"] for row in errors(run)] == ["empty_prompt"]
    workplace.run("resume", "--set", "limits.max_error_rate=0.02")
    assert len(committed(run)) == 50
    assert json.loads((run / "_manifest.json").read_text())["state"] == "completed_with_errors"


def test_retried_errors_become_rows_and_nothing_else_changes(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    tasks = {"default": {"sampling": {"max_tokens": 6, "temperature": 1.0, "n": 2, "ignore_eos": True}}}
    tiny_job(prompts(8), tasks=tasks, limits={"max_error_rate": 0.5})
    workplace.run("run", "job.yaml", "--run", "whole")
    poisoned_run(workplace, "kill-late", "row-7", "run", "job.yaml", "--run", "hurt")
    hurt, whole = workplace.folder / "output" / "tiny-hurt", workplace.folder / "output" / "tiny-whole"
    assert {row["row_id"] for row in errors(hurt)} == {"row-7#0", "row-7#1"}
    before = {file.name: file.read_bytes() for file in hurt.glob("data/*.parquet")}
    assert "14 ok, 2 errors (engine_killed 2)" in workplace.run("status", "tiny-hurt")

    out = workplace.run("resume", "tiny-hurt", "--retry-errors")
    assert "16 ok, 0 errors" in out
    assert errors(hurt) == []
    assert json.loads((hurt / "_manifest.json").read_text())["state"] == "completed"
    assert texts(hurt) == texts(whole)
    after = {file.name: file.read_bytes() for file in hurt.glob("data/*.parquet")}
    changed = [name for name in before if before[name] != after[name]]
    [name] = changed
    [kept] = (hurt / "_superseded" / "data").iterdir()
    assert kept.read_bytes() == before[name]
    assert len(list((hurt / "_superseded" / "errors").iterdir())) == 1
    ids = [row["row_id"] for row in pq.read_table(hurt / "data" / name).to_pylist()]
    assert ids == sorted(ids, key=lambda row_id: [int(part) for part in row_id.removeprefix("row-").split("#")])
