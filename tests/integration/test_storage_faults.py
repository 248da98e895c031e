"""A run whose store has a bad day: what passes is ridden out, what stays ends the run in a state that resumes."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flaky_proxy import FlakyProxy, Trouble, flaky_proxy
from s3_server import S3Bucket, S3Server
from workplace import Workplace, wait_for

from configs.job import Storage
from pipeline.layout import DATA_DIR
from pipeline.store.base import Store
from pipeline.store.open import open_store

pytestmark = pytest.mark.slow

ROWS = 60
FOREVER = 10**9


@dataclass(frozen=True)
class Road:
    """A job whose store is reached through a proxy, and the store itself, reached directly."""

    workplace: Workplace
    proxy: FlakyProxy
    store: Store

    def start_and_trouble(self, *troubles: Trouble, max_attempts: int = 8) -> subprocess.Popen[str]:
        """A run that is in the middle when the troubles begin."""
        process = self.workplace.start("run", "job.yaml", f"--set=storage.max_attempts={max_attempts}")
        wait_for(lambda: any(self.store.list(DATA_DIR)) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        self.proxy.troubles = list(troubles)
        return process

    @property
    def is_whole(self) -> bool:
        return committed_row_ids(self.store) == sorted(f"row-{n}#0" for n in range(ROWS))


@pytest.fixture
def road(tmp_path: Path, s3_bucket: S3Bucket, s3_server: S3Server, tiny_model: Path) -> Iterator[Road]:
    workplace = Workplace(tmp_path, dict(os.environ))  # with the credentials that `s3_bucket` has put there
    with flaky_proxy(s3_server.endpoint_url) as proxy:
        storage = s3_bucket.storage.model_dump(mode="json", exclude_defaults=True)
        workplace.write_rows([{"id": f"row-{n}", "prompt": f"Say {n}."} for n in range(ROWS)])
        workplace.write_job(
            **job(tiny_model, f"{s3_bucket.url}/runs"), storage=storage | {"endpoint_url": proxy.endpoint_url}
        )
        yield Road(workplace, proxy, open_store(f"{s3_bucket.url}/runs/faults-1", s3_bucket.storage))


def job(model: Path, root: str) -> dict[str, Any]:
    return {
        "workload": "faults",
        "source": {"path": "rows.jsonl"},
        "tasks": {"default": {"sampling": {"max_tokens": 200, "ignore_eos": True}}},
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"max_num_seqs": 2},
        "cluster": {"workers": 1, "shards_in_flight": 2},
        "shard": {"max_rows": 4},
        "sink": {"path": root},
    }


def committed_row_ids(store: Store) -> list[str]:
    files = (io.BytesIO(store.get(stat.key)) for stat in store.list(DATA_DIR))
    return sorted(row_id for file in files for row_id in pq.read_table(file)["row_id"].to_pylist())


def everything(**what: Any) -> list[Trouble]:
    return [Trouble(method=method, times=FOREVER, **what) for method in ("GET", "PUT", "HEAD", "DELETE", "POST")]


def test_what_passes_is_ridden_out(road: Road) -> None:
    """Throttled lists and reads, refused and reset writes, lost answers: a good store on a bad day."""
    process = road.start_and_trouble(
        Trouble("refuse", method="GET", times=FOREVER, every=3),
        Trouble("refuse", method="PUT", times=FOREVER, every=5),
        Trouble("lose_answer", method="PUT", times=FOREVER, every=3),
        Trouble("reset", method="HEAD", times=FOREVER, every=2),
        Trouble("slow", method="DELETE", times=FOREVER, every=2, delay_s=0.5),
    )
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert {"GET 503 SlowDown", "PUT 503 SlowDown", "PUT 200 lost"} <= set(road.proxy.seen)
    assert road.is_whole


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ({"kind": "refuse", "status": 503, "code": "SlowDown"}, "SlowDown"),
        ({"kind": "refuse", "status": 400, "code": "ExpiredToken"}, "expired"),
        ({"kind": "reset"}, "the network and the proxy"),
    ],
)
def test_what_stays_interrupts_and_resumes(road: Road, trouble: dict[str, Any], told: str) -> None:
    process = road.start_and_trouble(*everything(**trouble), max_attempts=2)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 5, out + err
    assert told in err
    assert "Traceback" not in err
    before = committed_row_ids(road.store)
    assert 0 < len(before) == len(set(before)) < ROWS
    road.proxy.troubles = []
    assert "resuming faults-1" in road.workplace.run("run", "job.yaml")
    assert road.is_whole


def test_a_store_that_hangs_does_not_hold_up_a_sigterm(road: Road) -> None:
    process = road.start_and_trouble(*everything(kind="slow", delay_s=90.0))
    time.sleep(3.0)  # every look at it is under way and will not come back
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)  # the grace of Kubernetes
    assert process.returncode == 5, out + err
    assert "faults-1: interrupted, resume: draftfleet resume" in out
    assert "Traceback" not in err


def test_a_full_disk_interrupts_and_resumes(workplace: Workplace, tiny_model: Path) -> None:
    """A real one: a file system of one megabyte, made larger for the resume."""
    disk = workplace.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        noise = random.Random(0)  # 0.6 MB, for the plan and again for the data
        load = [noise.randbytes(10_000).hex() for _ in range(ROWS)]
        workplace.write_rows([{"id": f"row-{n}", "prompt": f"Say {n}.", "load": load[n]} for n in range(ROWS)])
        workplace.write_job(**job(tiny_model, str(disk / "runs")))
        out = workplace.run("run", "job.yaml", code=5)
        assert "the disk is full" in out
        assert "Traceback" not in out
        store = open_store(str(disk / "runs" / "faults-1"), Storage())
        assert 0 < len(committed_row_ids(store)) < ROWS
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        workplace.run("run", "job.yaml")
        assert committed_row_ids(store) == sorted(f"row-{n}#0" for n in range(ROWS))
    finally:
        subprocess.run(["umount", disk], check=True)
