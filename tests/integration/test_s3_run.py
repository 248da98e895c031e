"""A run in a real S3 store: killed, resumed, looked at and read; and what stops it before anything starts."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import yaml
from s3_server import BUCKET, S3Bucket, S3Server
from workplace import Workplace

from pipeline.store.open import open_store
from pipeline.store.s3 import S3Store

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "configs" / "jobs" / "demo.yaml"
ROWS = DEMO.with_suffix(".jsonl")
IDS = sorted(json.loads(line)["id"] for line in ROWS.read_text().splitlines())
SECONDS = 20.0
"""A setting that cannot work is told within this."""


@dataclass(frozen=True)
class S3Workplace:
    """The demo job with its rows and its output in S3, for a tiny model."""

    local: Workplace
    bucket: S3Bucket

    @property
    def root(self) -> str:
        return f"{self.bucket.url}/runs"

    @property
    def store(self) -> S3Store:
        store = open_store(f"{self.root}/demo-1", self.bucket.storage)
        assert isinstance(store, S3Store)
        return store

    @property
    def shards(self) -> dict[str, str]:
        """What is committed: key -> etag."""
        return {stat.key: stat.etag for stat in self.store.list("data/")}

    @property
    def lessons(self) -> list[dict[str, Any]]:
        """What runs have left in the policy store."""
        policies = open_store(f"{self.root}/_policy", self.bucket.storage)
        return [json.loads(policies.get(stat.key)) for stat in policies.list("")]

    def put_rows(self, text: str) -> None:
        open_store(self.bucket.url, self.bucket.storage).put("input/demo.jsonl", text.encode())

    def by_environment(self) -> Workplace:
        """The command line where no job file is at hand: AWS_* variables alone lead to the store."""
        storage = self.bucket.storage
        variables = {"AWS_ENDPOINT_URL": str(storage.endpoint_url), "AWS_DEFAULT_REGION": str(storage.region)}
        return replace(self.local, env={**self.local.env, **variables})

    def with_variables(self, **variables: str) -> Workplace:
        return replace(self.local, env={**self.local.env, **variables})


@pytest.fixture
def s3_workplace(tmp_path: Path, s3_bucket: S3Bucket, tiny_model: Path) -> S3Workplace:
    local = Workplace(tmp_path, {**os.environ, "PYTHONWARNINGS": "default"})
    place = S3Workplace(local, s3_bucket)
    place.put_rows(ROWS.read_text())
    job: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    job["source"] = {"path": f"{s3_bucket.url}/input/demo.jsonl"}
    job["model"] = {"path": str(tiny_model), "dtype": "float32"}
    job["sink"] = {"path": place.root}
    job["storage"] = s3_bucket.storage.model_dump(mode="json", exclude_defaults=True)
    local.write_job(**job, cluster={"workers": 1, "shards_in_flight": 1})
    return place


def kill_after_first_shard(place: S3Workplace) -> dict[str, str]:
    """Start the run, and kill its driver once a shard is committed; returns what is."""
    process = place.local.start("run", "job.yaml", "--set", "engine.max_num_seqs=2")
    deadline = time.monotonic() + 120
    while not place.shards:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no shard was committed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return place.shards


def read_by_everyone(place: S3Workplace) -> dict[str, list[str]]:
    """The row ids, sorted, as every reader sees them."""
    endpoint = str(place.bucket.storage.endpoint_url)
    data = f"{place.root}/demo-1/data"
    files = pafs.S3FileSystem(endpoint_override=endpoint, region=place.bucket.storage.region)
    options = {"aws_endpoint_url": endpoint, "aws_allow_http": "true", "aws_region": str(place.bucket.storage.region)}
    path = data.removeprefix("s3://")
    return {
        "table": sorted(pq.read_table(path, filesystem=files)["row_id"].to_pylist()),
        "dataset": sorted(ds.dataset(path, filesystem=files).to_table()["row_id"].to_pylist()),
        "polars": sorted(
            pl.scan_parquet(f"{data}/*.parquet", storage_options=options).select("row_id").collect()["row_id"].to_list()
        ),
    }


def read_as_shown(out: str) -> Any:
    """Run the lines of Python that `show` prints."""
    names: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in out.partition("Read it with:\n")[2].splitlines()[:2]), names)
    return names["rows"]


def test_a_killed_run_resumes_and_everyone_reads_it(s3_workplace: S3Workplace) -> None:
    place = s3_workplace
    before = kill_after_first_shard(place)
    assert "demo-1: interrupted" in place.local.run("status", "job.yaml")
    far = place.by_environment()
    assert f"resume: draftfleet resume {place.root}/demo-1" in far.run("status", "--root", place.root)
    assert read_as_shown(far.run("show", "-n", "0", f"{place.root}/demo-1")).row_id.is_unique  # whole shards, always

    out = far.run("resume", "demo-1", "--root", place.root, "--set", "cluster.shards_in_flight=3")
    assert "resuming demo-1, " in out
    assert "demo-1: completed" in out
    assert len(before) < len(place.shards) == 10
    assert place.shards.items() >= before.items()

    expected = [f"{row_id}#0" for row_id in IDS]
    for reader, ids in read_by_everyone(place).items():
        assert ids == expected, reader
    assert sorted(read_as_shown(place.local.run("show", "job.yaml")).row_id) == expected
    manifest = json.loads(place.store.get("_manifest.json"))
    assert manifest["attempts"] == [1, 2]
    assert manifest["usage"]["samples_ok"] == 50
    assert "demo-1  completed  50/50" in far.run("runs", "--root", place.root)
    (lesson,) = place.lessons
    assert (lesson["run"], lesson["folder"]) == ("demo-1", f"{place.root}/demo-1")
    assert {each["drafter"] for each in lesson["strata"]} == {"ngram"}
    assert "demo-1: completed" in far.run("status", "--root", place.root)

    place.put_rows(ROWS.read_text().replace("bread", "cake"))
    assert "demo.jsonl" in place.local.run("run", "job.yaml", code=2)  # other rows are another run


ANY_SERVER = S3Server("", BUCKET)
READ_ONLY = {
    "AWS_ACCESS_KEY_ID": ANY_SERVER.read_only_access_key,
    "AWS_SECRET_ACCESS_KEY": ANY_SERVER.read_only_secret_key,
}
CLOSED_PORT = "http://127.0.0.1:9"

TROUBLES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "unknown key": ({"AWS_ACCESS_KEY_ID": "wrong"}, {}, "check AWS_ACCESS_KEY_ID"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {}, "check AWS_SECRET_ACCESS_KEY"),
    "no key": ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, {}, "set AWS_ACCESS_KEY_ID and"),
    "read-only key": (READ_ONLY, {}, "docs/storage.md"),
    "missing bucket": ({}, {"sink.path": "s3://no-such-bucket/runs"}, "correct sink.path"),
    "no bucket": ({}, {"sink.path": "s3a://"}, "write s3://bucket/prefix"),
    "dead endpoint": ({}, {"storage.endpoint_url": CLOSED_PORT}, "check storage.endpoint_url"),
    "dead source": ({}, {"storage.endpoint_url": CLOSED_PORT, "sink.path": "here"}, "check storage.endpoint_url"),
    "missing source bucket": ({}, {"source.path": "s3://no-such-bucket/rows.jsonl"}, "source.path"),
    "missing source": ({}, {"source.path": f"s3://{BUCKET}/no.jsonl"}, f"s3://{BUCKET}/no.jsonl: no such file"),
}
"""What is wrong -> AWS_* variables, settings of the job, words of the message."""


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_setting_that_cannot_work_is_told_before_anything_starts(s3_workplace: S3Workplace, trouble: str) -> None:
    place = s3_workplace
    variables, settings, told = TROUBLES[trouble]
    ray_folder = place.local.folder / "ray"
    started = time.monotonic()
    user = place.with_variables(**variables, RAY_TMPDIR=str(ray_folder))
    out = user.run("run", "job.yaml", *(f"--set={name}={value}" for name, value in settings.items()), code=2)
    assert time.monotonic() - started < SECONDS
    assert told in out
    assert "Traceback" not in out
    assert ("planning" in out) == ("source" in trouble)  # a store that cannot be used is told before any row is read
    assert not ray_folder.exists()
    assert list(open_store(place.root, place.bucket.storage).list("")) == []
