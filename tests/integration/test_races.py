"""Two who want the same run, and one who is cut off in the middle."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from workplace import Workplace, wait_for

pytestmark = pytest.mark.slow


def test_a_second_driver_of_a_live_run_leaves_at_once(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    rows = [{"id": f"row-{n}", "prompt": "Say something."} for n in range(2000)]
    tiny_job(rows, tasks={"default": {"sampling": {"max_tokens": 64, "ignore_eos": True}}})
    run = workplace.folder / "output" / "tiny-1"
    process = workplace.start("run", "job.yaml")
    try:
        wait_for(lambda: any(run.glob("data/*.parquet")))
        started = time.monotonic()
        out = workplace.run("run", "job.yaml", code=2)
        assert time.monotonic() - started < 30
        assert "this run is driven by attempt 1 (host" in out
        assert f"pid {process.pid}), heartbeat " in out
        assert "--takeover" not in out  # it lives: nothing is there to take over
        out = workplace.run("resume", "--takeover", code=2)
        assert "this run is driven by attempt 1" in out
        assert [file.name for file in run.glob("_ledger/driver-*.json")] == ["driver-1.json"]
        assert all(file.name.startswith("a1-") for file in run.glob("_ledger/a*.json"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 5
    assert "tiny-1: interrupted" in workplace.run("status")


def test_the_samples_of_one_prompt_survive_a_kill_in_the_middle(
    workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    sampling = {"max_tokens": 600, "temperature": 1.0, "n": 4, "ignore_eos": True}
    tiny_job([{"id": "one", "prompt": "Tell a story."}], tasks={"default": {"sampling": sampling}})
    workplace.run("run", "job.yaml", "--run", "whole")
    killed = workplace.folder / "output" / "tiny-killed"
    process = workplace.start("run", "job.yaml", "--run", "killed")
    wait_for(lambda: any(killed.glob("_attempts/*/*.json")))
    process.kill()
    process.communicate()
    assert not list(killed.glob("data/*.parquet"))
    workplace.run("run", "job.yaml", "--run", "killed")
    texts = texts_of(killed)
    assert texts == texts_of(workplace.folder / "output" / "tiny-whole")
    assert len(set(texts)) == 4


def test_a_planning_that_is_ended_leaves_nothing(workplace: Workplace, tiny_job: Callable[..., Path]) -> None:
    tiny_job([{"id": f"row-{n}", "prompt": f"Tell about {n}. " * 20} for n in range(100_000)])
    scratch = workplace.folder / "scratch"
    scratch.mkdir()
    process = Workplace(workplace.folder, {**workplace.env, "TMPDIR": str(scratch)}).start("run", "job.yaml")
    wait_for(lambda: any(scratch.glob("draftfleet-plan-*/*")))
    time.sleep(2.0)  # planning processes that are cut off while they start complain to stderr
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 10
    assert process.returncode == 5, out + err
    assert "Traceback" not in err
    assert not list(scratch.iterdir())
    assert not list((workplace.folder / "output").glob("*/_plan/CURRENT"))


def texts_of(run: Path) -> list[str]:
    [file] = run.glob("data/*.parquet")
    return [row["text"] for row in pq.read_table(file).to_pylist()]
