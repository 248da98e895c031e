"""Under which conditions something was measured: a number without them cannot be compared with another."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from pipeline.provenance import git_commit, versions


def conditions() -> dict[str, Any]:
    """Machine, software and commit at the time of the call; `load_1m` counts waiting and running processes."""
    return {
        "cpu_model": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions(),
        "git_commit": git_commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def told(where: dict[str, Any]) -> list[str]:
    """The same as lines of a Markdown list, for the head of a report."""
    versions = where["versions"]
    return [
        f"- {where['date']}, commit {where['git_commit'] or 'unknown'}, load {where['load_1m']} before the start",
        f"- {where['cores']} cores of {where['cpu_model']}, {where['memory_gib']} GiB; {where['system']}",
        f"- Python {versions['python']}, torch {versions['torch']}, Ray {versions['ray']}",
    ]


def cpu_model() -> str:
    """As Linux names it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
