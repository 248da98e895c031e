"""Planted secrets and prompts come out where they belong, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from s3_server import S3Bucket, S3Server
from workplace import Workplace

from pipeline.store.open import open_store

pytestmark = pytest.mark.slow

PROMPT = "PLANTED-PROMPT-5c1e"


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Ray's own logs; a short path, for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_credentials_and_prompts_stay_out_of_logs_and_records(
    workplace: Workplace, s3_bucket: S3Bucket, s3_server: S3Server, tiny_model: Path, ray_folder: Path
) -> None:
    secret = s3_server.secret_key
    rows = [{"id": f"row-{n}", "prompt": f"{PROMPT} {n}"} for n in range(12)]
    rows += [{"id": "long", "prompt": f"{PROMPT} " * 600}, {"id": "", "prompt": PROMPT}]  # two that are rejected
    workplace.write_rows(rows)
    workplace.write_job(
        workload="secret",
        source={"path": "rows.jsonl"},
        tasks={"default": {"sampling": {"max_tokens": 4}, "deadline_s": 1e-9}},  # and twelve that fail in the engine
        model={"path": str(tiny_model), "dtype": "float32"},
        sink={"path": f"{s3_bucket.url}/runs"},
        storage=s3_bucket.storage.model_dump(mode="json", exclude_defaults=True),
        limits={"max_error_rate": 1.0},
    )
    with_logs = Workplace(workplace.folder, {**os.environ, "RAY_TMPDIR": str(ray_folder)})
    said = with_logs.run("run", "job.yaml", code=0)
    said += with_logs.run(
        "run", "job.yaml", "--run", "other", "--set", "storage.endpoint_url=http://127.0.0.1:9", code=2
    )
    store = open_store(f"{s3_bucket.url}/runs/secret-1", s3_bucket.storage)
    keys = [stat.key for stat in store.list("")]
    # The plan is the input itself, as the error rows below carry it.
    records = {key: store.get(key) for key in keys if key.endswith(".json") and not key.startswith("_plan/")}
    footers = [
        str(pq.read_metadata(_file(workplace.folder, store.get(key))).metadata) for key in keys if "data/" in key
    ]
    logs = [file.read_bytes().decode(errors="replace") for file in ray_folder.rglob("*") if file.is_file()]
    assert len(records) > 3
    assert footers
    assert any("raylet" in log for log in logs)
    for text in [said, *footers, *logs, *(body.decode() for body in records.values())]:
        assert secret not in text
        assert PROMPT not in text
    errors = [store.get(key) for key in keys if key.startswith("errors/")]
    assert errors  # whose rows do carry their prompt: they are the user's own
    assert any(
        PROMPT in json.dumps(pq.read_table(_file(workplace.folder, body)).to_pylist(), default=str) for body in errors
    )


def _file(folder: Path, body: bytes) -> Path:
    path = folder / "object.parquet"
    path.write_bytes(body)
    return path
