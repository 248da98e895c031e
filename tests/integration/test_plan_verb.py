"""`draftfleet plan`: again it gives the same, with --limit too, and what it says to type next is taken."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from workplace import Workplace

from configs.errors import RunConflict
from jobs import plan, run


def test_a_limited_plan_is_the_same_again_and_its_next_step_takes_it(
    workplace: Workplace, tiny_job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_job([{"id": f"row-{n}", "prompt": f"Say {n}."} for n in range(6)])
    monkeypatch.chdir(workplace.folder)
    monkeypatch.setattr(run, "drive", lambda *_: "completed")

    def call(verb: str, *arguments: str) -> str:
        command = {"plan": plan.command, "run": run.command}[verb]
        return CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False).output

    limited = ("plan", "job.yaml", "--limit", "2", "--run", "x", "--set", "tasks.default.system=Be brief, please.")
    told = call(*limited)
    assert "2 rows, 2 samples" in told
    assert "2 rows, 2 samples" in call(*limited)
    next_step = shlex.split(told.partition("generate with: draftfleet ")[2])
    assert next_step[:2] == ["run", "job.yaml"]
    assert "tiny-x: planned" in call(*next_step)
    with pytest.raises(RunConflict, match=r"source\.limit: 2 -> null"):
        call("plan", *limited[1:2], *limited[4:])
    call("plan", "job.yaml", "--run", "y")
    with pytest.raises(RunConflict, match=r"source\.limit: null -> 2"):
        call("plan", "job.yaml", "--run", "y", "--limit", "2")
