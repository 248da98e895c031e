"""Sources in S3, against a real server: the same rows as from disk, and clear words when something is missing."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import job_over, planned

from configs.errors import SourceError, StorageError
from configs.job import Job
from pipeline.plan import load_plan, make_plan, read_planned
from pipeline.source.opening import open_source
from pipeline.store.open import open_store

if TYPE_CHECKING:
    from conftest import S3Bucket

ROWS = [{"id": f"row-{n}", "prompt": f"Number {n}", "tags": ["t"] * (n % 2)} for n in range(20)]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=5)
    return file.getvalue()


def put(bucket: S3Bucket, **objects: bytes) -> None:
    store = open_store(bucket.url, bucket.storage)
    for name, data in objects.items():
        store.put(name.replace("__", "/").replace("_", "."), data)


def s3_job(bucket: S3Bucket, path: str, **sections: Any) -> Job:
    return job_over(f"{bucket.url}/{path}", storage=bucket.storage.model_dump(), **sections)


def test_objects_folders_and_globs_are_read_like_files(s3_bucket: S3Bucket, chat_model: Path) -> None:
    put(
        s3_bucket,
        lines__a_jsonl=lines(ROWS[:10]),
        lines__deep__b_jsonl=lines(ROWS[10:]),
        zip__c_jsonl_gz=gzip.compress(lines(ROWS)),
        parquet__d_parquet=parquet(ROWS),
    )
    expected = {row["id"] for row in ROWS}
    for path in ("lines", "lines/", "lines/**/*.jsonl", "zip/c.jsonl.gz", "parquet/?.parquet", "parquet/[d].parquet"):
        got = planned(s3_job(s3_bucket, path), chat_model)
        assert set(got.by_id()) == expected, path
        assert got.by_id()["row-1"]["tags"] == ["t"]
    assert got.rows[0]["_source_file"] == f"{s3_bucket.url}/parquet/d.parquet"
    assert set(planned(s3_job(s3_bucket, "lines/*.jsonl"), chat_model).by_id()) == {f"row-{n}" for n in range(10)}
    assert set(planned(s3_job(s3_bucket, "lines/a.jsonl"), chat_model).by_id()) == {f"row-{n}" for n in range(10)}


def test_the_fingerprint_has_the_objects_etag(s3_bucket: S3Bucket) -> None:
    put(s3_bucket, in_jsonl=lines(ROWS))
    (before,) = open_source(s3_job(s3_bucket, "in.jsonl"), Path("/")).files
    put(s3_bucket, in_jsonl=lines(ROWS[1:]))
    (after,) = open_source(s3_job(s3_bucket, "in.jsonl"), Path("/")).files
    assert before.path == after.path == f"{s3_bucket.url}/in.jsonl"
    assert before.etag != after.etag
    assert after.size == len(lines(ROWS[1:]))


def test_a_plan_in_s3_is_read_back(s3_bucket: S3Bucket, chat_model: Path) -> None:
    put(s3_bucket, in_jsonl=lines(ROWS))
    out = open_store(f"{s3_bucket.url}/runs/w-1", s3_bucket.storage)
    plan = make_plan(s3_job(s3_bucket, "in.jsonl", shard={"max_rows": 6}), Path("/"), chat_model, out)
    assert load_plan(out) == plan
    tables = [read_planned(out, plan.plan_hash, shard) for shard in plan.shards]
    assert sorted(pa.concat_tables(tables).column("_id").to_pylist()) == sorted(row["id"] for row in ROWS)
    assert make_plan(s3_job(s3_bucket, "in.jsonl"), Path("/"), chat_model, out) == plan


def test_an_earlier_run_in_s3_is_looked_for_there(s3_bucket: S3Bucket, chat_model: Path) -> None:
    with pytest.raises(SourceError, match=f"no run in {s3_bucket.url}/runs/w-7"):
        planned(
            s3_job(s3_bucket, "x").model_copy(update={"source": job_over(f"run:{s3_bucket.url}/runs/w-7").source}),
            chat_model,
        )
    job = job_over("run:w-7", sink={"path": f"{s3_bucket.url}/runs"}, storage=s3_bucket.storage.model_dump())
    with pytest.raises(SourceError, match=f"no run in {s3_bucket.url}/runs/w-7"):
        planned(job, chat_model)


def test_what_is_not_there_is_named(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=rf"{s3_bucket.url}/gone\.jsonl: no such file, folder or match"):
        open_source(s3_job(s3_bucket, "gone.jsonl"), Path("/"))
    elsewhere = job_over("s3://no-such-bucket-here/in.jsonl", storage=s3_bucket.storage.model_dump())
    with pytest.raises((SourceError, StorageError), match="no-such-bucket-here"):
        open_source(elsewhere, Path("/"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match=r"AWS_SECRET_ACCESS_KEY|403"):
        open_source(s3_job(s3_bucket, "in.jsonl"), Path("/"))
