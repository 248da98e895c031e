"""A run on a Ray cluster that somebody else started, reached by its address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from workplace import Workplace, wait_for

pytestmark = pytest.mark.slow

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-this-test-alone"}
"""By default `ray start` asks for a token where ~/.ray/auth_token exists, and a driver presents none to an address."""


@pytest.fixture
def cluster() -> Iterator[str]:
    """A head of two CPUs, at home in a folder of its own, until the test is over."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # a socket's path may have 107 bytes
        command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=2"]
        command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}"]
        command += ["--include-dashboard=false", "--disable-usage-stats"]
        with open(Path(folder) / "told.txt", "wb") as log:
            environment = {**os.environ, **TOKEN}
            head = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            wait_for(lambda: answers(address) or head.poll() is not None)
            assert head.poll() is None
            yield address
        finally:
            head.send_signal(signal.SIGTERM)  # with --block, it ends the processes that it started
            head.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as asked:
        return asked.connect_ex((host, int(port))) == 0


@pytest.mark.timeout(300)
def test_a_job_runs_on_a_cluster_by_its_address(
    cluster: str, workplace: Workplace, tiny_job: Callable[..., Path]
) -> None:
    rows = [{"id": f"row-{n}", "prompt": f"Say something about {n}."} for n in range(24)]
    tiny_job(rows, cluster={"address": cluster, "workers": 2}, sink={"path": str(workplace.folder / "output")})
    out = Workplace(workplace.folder, {**workplace.env, **TOKEN}).run("run", "job.yaml")
    assert "24/24 samples done" in out
    run = workplace.folder / "output" / "tiny-1"
    assert sorted(pq.read_table(run / "data")["id"].to_pylist()) == sorted(row["id"] for row in rows)
    engines = [json.loads(file.read_text()) for file in run.glob("_ledger/a1-*.json")]
    assert len(engines) == 2
    assert all(engine["seconds_ns"]["teardown"] > 0 for engine in engines)
    assert answers(cluster)  # it was joined, not taken over: it goes on for others
