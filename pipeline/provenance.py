"""Which code and which libraries ran: for footers, so that each output knows where it came from."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path


@functools.cache
def git_commit() -> str:
    """Commit of the checkout that this code runs from, `+dirty` if it has changes; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return f"{commit}+dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what shapes the output or the files."""
    names = ("draftfleet", "ray", "torch", "transformers", "tokenizers", "pyarrow")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
