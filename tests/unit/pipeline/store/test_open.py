"""What a user may type for a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import StorageError
from configs.job import Storage
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store
from pipeline.store.s3 import S3Store

STORAGE = Storage(region="eu-central-1")


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "s3a://bucket/a/b/", "S3://bucket/a/b//", "s3n://bucket//a/b"])
def test_one_place_in_s3(url: str) -> None:
    store = open_store(url, STORAGE)
    assert store == S3Store("bucket", "a/b", STORAGE)
    assert store.url == "s3://bucket/a/b"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/"])
def test_a_whole_bucket(url: str) -> None:
    assert open_store(url, STORAGE).url == "s3://bucket"
    assert open_store(url, STORAGE).child("run").url == "s3://bucket/run"


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file://localhost{}/", "{}/x/.."])
def test_one_place_on_disk(form: str, tmp_path: Path) -> None:
    store = open_store(form.format(tmp_path), STORAGE)
    assert store == LocalStore(str(tmp_path))
    assert store.url == str(tmp_path)


def test_a_file_url_may_be_quoted() -> None:
    assert open_store("file:///data/my%20runs", STORAGE).url == "/data/my runs"


def test_a_path_is_taken_as_it_is() -> None:
    assert open_store("/data/my%20runs", STORAGE).url == "/data/my%20runs"


@pytest.mark.parametrize(
    ("url", "next_step"),
    [
        ("", "give a folder or s3://"),
        ("  ", "give a folder or s3://"),
        ("s3://", "names no bucket"),
        ("s3:///a", "names no bucket"),
        ("gs://bucket/a", "gs:// is not supported"),
        ("https://bucket.s3.amazonaws.com/a", "https:// is not supported"),
        ("file://server/a", "names the host server"),
        ("s3://bucket/../a", "rename it"),
        ("s3://bucket/a//b", "rename it"),
    ],
)
def test_what_cannot_be_opened(url: str, next_step: str) -> None:
    with pytest.raises(StorageError, match=next_step):
        open_store(url, STORAGE)
