"""What every test may use: a real S3 server on loopback, started by the first test that asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings
from s3_server import S3Bucket, S3Server, running_server

from configs.job import Storage

# A shared machine stalls now and then; an example that took long says nothing about the code.
settings.register_profile("draftfleet", deadline=None)
settings.load_profile("draftfleet")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server per test process, on its own ports."""
    with running_server(tmp_path_factory.mktemp("s3-server")) as server:
        yield server


@pytest.fixture
def s3_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The server's credentials, and nothing of the machine's own AWS settings."""
    absent = str(tmp_path_factory.getbasetemp() / "no-aws-config")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", absent)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", absent)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)


@pytest.fixture
def s3_bucket(s3_server: S3Server, s3_environment: None) -> S3Bucket:
    """A prefix rather than a bucket of its own: the server reserves disk volumes for each bucket."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    storage = Storage(endpoint_url=s3_server.endpoint_url, region=s3_server.region, addressing_style="path")
    return S3Bucket(f"s3://{s3_server.bucket}/{prefix}", s3_server.bucket, prefix, storage)
