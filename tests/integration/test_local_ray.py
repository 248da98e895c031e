"""The Ray that a local run starts listens on all interfaces, so it must refuse whoever lacks its token."""

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
