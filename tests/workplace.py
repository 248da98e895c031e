"""The command line as a user has it: a folder, a job file, a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Workplace:
    """A folder of its own with a job in it, and `draftfleet` called there."""

    folder: Path
    env: Mapping[str, str]

    def write_rows(self, rows: Sequence[Mapping[str, Any]], name: str = "rows.jsonl") -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    def write_job(self, name: str = "job.yaml", **sections: Any) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(sections, sort_keys=False))
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "jobs", *arguments],
            cwd=self.folder,
            env=dict(self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, timeout: float = 240) -> str:
        """Run one command line to its end and return what it printed; another exit code than `code` fails the test."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, f"exit {process.returncode}, not {code}\n{out}\n{err}"
        return out + err


def wait_for(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
