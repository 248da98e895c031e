"""A newcomer's first command: the demo job with its real model, as `make demo` runs it; and a look before it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from workplace import Workplace

DEMO = Path(__file__).parents[2] / "configs" / "jobs" / "demo.yaml"
ROWS = [json.loads(line) for line in DEMO.with_suffix(".jsonl").read_text().splitlines()]
IDS = sorted(f"{row['id']}#0" for row in ROWS)
TASKS = {"chat", "code", "creative", "extract", "summarize"}

READ_WITH_RAY = """
import json, sys
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
ray.data.DataContext.get_current().enable_progress_bars = False
print(json.dumps(sorted(row["row_id"] for row in ray.data.read_parquet(sys.argv[1]).take_all())))
"""


def read_by_everyone(data: Path) -> dict[str, list[str]]:
    """The row ids, sorted, as every reader sees them by the folder or the plain glob."""
    files = f"{data}/*.parquet"
    ray = subprocess.run([sys.executable, "-c", READ_WITH_RAY, str(data)], capture_output=True, text=True, check=True)
    return {
        "pandas": sorted(pd.read_parquet(data)["row_id"]),
        "table": sorted(pq.read_table(data)["row_id"].to_pylist()),
        "dataset": sorted(ds.dataset(data, format="parquet").to_table()["row_id"].to_pylist()),
        "duckdb": sorted(row[0] for row in duckdb.sql(f"SELECT row_id FROM '{files}'").fetchall()),
        "polars": sorted(pl.scan_parquet(files).select("row_id").collect()["row_id"].to_list()),
        "ray": json.loads(ray.stdout.splitlines()[-1]),
    }


def read_as_shown(out: str) -> Any:
    """Run the two lines of Python that a run ends with."""
    names: dict[str, Any] = {}
    lines = out.partition("Read it with:\n")[2].splitlines()[:2]
    exec("\n".join(line.strip() for line in lines), names)
    return names["rows"]


def answers(out: str) -> list[str]:
    """The tasks of the answers that were shown."""
    return [line.split()[1] for line in out.splitlines() if line.startswith("── ")]


@pytest.mark.timeout(600)
def test_the_demo_ends_with_real_text_that_everyone_can_read(workplace: Workplace) -> None:
    out = workplace.run("run", str(DEMO), "-n", "3", timeout=500)
    data = workplace.folder / "output" / "demo-1" / "data"
    assert len(set(answers(out))) == 3
    assert set(answers(out)) <= TASKS
    assert "demo-1: completed" in out
    assert "50/50 samples done in 10/10 shards" in out
    assert "50 ok, 0 errors" in out
    assert "a small model that shows the road, not the quality of answers" in out
    assert f"The dataset: {data}" in out
    rows = read_as_shown(out)
    assert sorted(rows["row_id"]) == IDS
    assert set(rows["task"]) == TASKS
    assert (rows["text"].str.len() > 0).mean() > 0.9
    assert rows[rows["task"] == "code"]["text"].str.contains("def |return|print|function").mean() > 0.5
    assert {row["id"]: row.get("question") for row in ROWS} == {
        row.id: row.question if isinstance(row.question, str) else None for row in rows.itertuples()
    }
    for reader, ids in read_by_everyone(data).items():
        assert ids == IDS, reader

    shown = workplace.run("show", "-n", "60")
    assert sorted(line.split()[3] for line in shown.splitlines() if line.startswith("── ")) == IDS

    before = {file: file.stat().st_mtime_ns for file in data.iterdir()}
    started = time.monotonic()
    again = workplace.run("run", str(DEMO), "-n", "3")
    assert time.monotonic() - started < 20
    assert again in out
    assert {file: file.stat().st_mtime_ns for file in data.iterdir()} == before


def test_a_preview_shows_rows_of_every_task_and_keeps_nothing(workplace: Workplace, tiny_model: Path) -> None:
    settings = (f"--set=model.path={tiny_model}", "--set=model.dtype=float32")
    out = workplace.run("preview", str(DEMO), "-n", "2", *settings)
    assert sorted(answers(out)) == sorted([*TASKS, *TASKS])
    for task in TASKS:
        first = next(row["id"] for row in ROWS if row["task"] == task)
        assert f"── {task} · {first}#0 ─" in out
    assert list(workplace.folder.iterdir()) == []


def test_a_preview_can_be_traced(workplace: Workplace, tiny_model: Path) -> None:
    """The engine has a thread of its own, which the trace must show."""
    settings = (f"--set=model.path={tiny_model}", "--set=model.dtype=float32")
    out = workplace.run("preview", str(DEMO), "-n", "1", "--profile", "trace.json", *settings)
    assert "trace: trace.json" in out
    events = json.loads((workplace.folder / "trace.json").read_text())["traceEvents"]
    assert {"draft", "verify", "sample", "aten::linear"} <= {event["name"] for event in events}
