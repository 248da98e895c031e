"""The Ray that a local run starts listens on all interfaces, so it must refuse whoever lacks its token; and its workers
keep their tensors on huge pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from pipeline.local_ray import start_local

pytestmark = pytest.mark.slow

JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False); print('joined')"

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def address() -> Iterator[str]:
    start_local(1)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def joined(address: str, **variables: str) -> bool:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", JOIN, address], env=environment, capture_output=True, text=True)
    return "joined" in done.stdout


def test_only_who_has_the_token_may_join(address: str, tmp_path: Path) -> None:
    assert joined(address)
    assert not joined(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="guessed", HOME=str(tmp_path))
    assert not joined(address, RAY_AUTH_MODE="disabled", HOME=str(tmp_path))


@ray.remote
def kib_on_huge_pages() -> int:
    import torch

    weights = [torch.ones(1 << 18) for _ in range(64)]  # of 1 MiB: smaller than a huge page, as a layer's weights are
    smaps = Path("/proc/self/smaps").read_text()
    del weights
    return sum(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("AnonHugePages:"))


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text(), reason="this kernel gives no huge pages"
)
def test_workers_have_their_tensors_on_huge_pages(address: str) -> None:
    assert ray.get(kib_on_huge_pages.remote()) > 32 * 1024
