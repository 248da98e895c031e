"""The boto3 client of this process for a job's storage section. Clients are thread-safe and refresh credentials
themselves; they cannot be pickled, so a store carries only its settings and each process makes its own client.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from configs.job import Storage

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_CONNECTIONS = 32
"""Per process: an engine commits a few shards at a time, a driver lists and reads."""

_clients: dict[tuple[Storage, frozenset[tuple[str, str]], int], S3Client] = {}
_lock = threading.Lock()


def client_for(storage: Storage) -> S3Client:
    """The client of this process and environment: a forked process and corrected AWS_* variables get a new one.

    Raises:
        BotoCoreError, ValueError: settings that boto3 refuses, such as an unknown profile or a malformed endpoint.
    """
    environment = frozenset((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    key = (storage, environment, os.getpid())
    with _lock:
        if key not in _clients:
            _clients[key] = _make_client(storage)
        return _clients[key]


def impatient(storage: Storage) -> Storage:
    """The same storage for a first look: it tells within seconds what does not answer."""
    return storage.model_copy(
        update={
            "max_attempts": min(storage.max_attempts, 2),
            "connect_timeout_s": min(storage.connect_timeout_s, 5.0),
            "read_timeout_s": min(storage.read_timeout_s, 7.0),
        }
    )


def _make_client(storage: Storage) -> S3Client:
    session = boto3.Session(profile_name=storage.profile, region_name=storage.region)
    return session.client("s3", endpoint_url=storage.endpoint_url, config=_config(storage))


def _config(storage: Storage) -> Config:
    return Config(
        retries={"mode": "standard", "total_max_attempts": storage.max_attempts},
        connect_timeout=storage.connect_timeout_s,
        read_timeout=storage.read_timeout_s,
        tcp_keepalive=True,
        max_pool_connections=MAX_CONNECTIONS,
        s3={"addressing_style": storage.addressing_style},
        # The newer default, a checksum that trails the body, is not understood by every self-hosted store. Writes carry
        # Content-MD5 instead, which all of them know.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
