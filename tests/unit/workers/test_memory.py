"""How much memory a cache may take."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch

from workers import memory
from workers.memory import available_bytes, default_kv_tokens

GIB = 2**30


@pytest.mark.parametrize(("cores", "threads", "engines"), [(1, 1, 1), (8, 1, 8), (8, 3, 2), (2, 4, 1)])
def test_the_engines_of_the_usable_cores_share_half_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, engines: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 * GIB)
    tokens = default_kv_tokens(1024, device=torch.device("cpu"), threads=threads)
    assert tokens == 8 * GIB // 2 // engines // 1024


@pytest.mark.parametrize(("limit", "left"), [("max", None), (str(3 * GIB), 2 * GIB), (str(GIB // 2), 0)])
def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, left: int | None
) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    machine = psutil.virtual_memory()._replace(available=64 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert available_bytes() == (64 * GIB if left is None else left)
