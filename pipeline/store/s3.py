"""Objects in S3, or in a store that speaks its language.

    create     PUT with If-None-Match: *      412 somebody was first · 409 two at once: again
    replace    PUT with If-Match: <etag>      412 (or 404) it changed · 409 again

Lost answers: a PUT that succeeded without our hearing of it is repeated by boto3 and then meets its own object. So
every PUT carries a token of its call in the object's metadata, and a 412 is followed by a HEAD: if the token is ours,
it was a success. Requests are retried by boto3 (`storage.max_attempts`, backoff with jitter); an answer that breaks off
and a 409 are retried here. One PUT takes up to 5 GiB, far more than a shard, so there is no multi-part upload.

Semantics: S3 user guide, "How to prevent object overwrites with conditional writes".
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

from configs.errors import StorageError
from configs.job import Storage
from pipeline.store.backoff import retry
from pipeline.store.base import AlreadyExists, Changed, NotFound, Stat
from pipeline.store.key import checked_key, is_key
from pipeline.store.probe import probe
from pipeline.store.s3_client import client_for, impatient
from pipeline.store.s3_errors import FOREIGN, code_of, translate

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MAX_PUT_BYTES = 5 * 1024**3
WRITER = "draftfleet-writer"
"""Metadata name of the token that tells one call's object from another's."""

ABSENT = ("NoSuchKey", "404")
UNMET = ("PreconditionFailed", "412")
CONFLICT = ("ConditionalRequestConflict", "OperationAborted", "409")
BROKEN_OFF = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)


@dataclass(frozen=True, slots=True)
class S3Store:
    """See the module's docstring. Holds settings only, so it travels to workers; see `s3_client`."""

    bucket: str
    prefix: str
    """Without slashes at its ends; may be empty."""
    storage: Storage

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", self.prefix.strip("/"))
        if self.prefix:
            checked_key(self.prefix)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def put_if_absent(self, key: str, data: bytes) -> Stat:
        stat, written = self._put(key, data, {"IfNoneMatch": "*"})
        if stat is None or not written:
            raise AlreadyExists(f"{self.url}/{key} exists")
        return stat

    def put_if_match(self, key: str, data: bytes, etag: str) -> Stat:
        stat, written = self._put(key, data, {"IfMatch": f'"{etag}"'})
        if stat is None or not written:
            found = f"is now version {stat.etag}, not {etag}" if stat else f"is gone: it is no longer version {etag}"
            raise Changed(f"{self.url}/{key} {found}")
        return stat

    def put(self, key: str, data: bytes) -> Stat:
        stat, _ = self._put(key, data, {})
        assert stat is not None
        return stat

    def get(self, key: str) -> bytes:
        return self._read(key, {})

    def get_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        if length == 0:
            self.head(key)
            return b""
        condition = {} if etag is None else {"IfMatch": f'"{etag}"'}
        return self._read(key, {"Range": f"bytes={start}-{start + length - 1}", **condition})

    def head(self, key: str) -> Stat:
        return _stat(key, self._look(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        """Asks for every page at once and sorts: not every store lists in key order (SeaweedFS, S3 Express)."""
        with self._told("list", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._full(prefix)
            )
            found = [self._listed(entry) for page in pages for entry in page.get("Contents", [])]
        return iter(sorted((stat for stat in found if is_key(stat.key)), key=lambda stat: stat.key))

    def delete(self, key: str) -> None:
        with self._told("delete", key):
            self._client.delete_object(Bucket=self.bucket, Key=self._full(checked_key(key)))

    def now(self) -> float:
        """The Date of an answer, in whole seconds; one that denies access has it too."""
        with self._told("look at", ""):
            try:
                answer: Any = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._full(""), MaxKeys=1)
            except ClientError as error:
                if code_of(error) != "AccessDenied":
                    raise
                answer = error.response
        if (date := _date(answer)) is None:
            raise StorageError(f"{self._endpoint()} sends no Date header, so no age can be told; use another store")
        return date

    def children(self) -> Sequence[str]:
        prefix = self._full("")
        with self._told("list", ""):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=prefix, Delimiter="/"
            )
            folders = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return sorted(name for folder in folders if is_key(name := folder.removeprefix(prefix).rstrip("/")))

    def child(self, name: str) -> S3Store:
        return S3Store(self.bucket, self._full(checked_key(name)), self.storage)

    def check(self) -> None:
        """Asks with few tries and short timeouts, so that a wrong key or endpoint is told within seconds."""
        probe(replace(self, storage=impatient(self.storage)))

    @property
    def _client(self) -> S3Client:
        return client_for(self.storage)

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _put(self, key: str, data: bytes, condition: Mapping[str, Any]) -> tuple[Stat | None, bool]:
        """What stands under the key now, if anything, and whether this call wrote it."""
        if len(data) > MAX_PUT_BYTES:
            raise StorageError(f"{self.url}/{key}: {len(data)} bytes are over 5 GiB; write smaller shards")
        writer = uuid.uuid4().hex
        request = self._request(key, data, writer)
        with self._told("write", key):
            try:
                answer = retry(
                    lambda: self._client.put_object(**request, **condition), _conflict, self.storage.max_attempts
                )
                modified = _date(answer) or self.head(key).modified
                return Stat(key, len(data), _etag(answer), modified), True
            except ClientError as error:
                unmet = (*UNMET, *ABSENT) if "IfMatch" in condition else UNMET
                if not condition or code_of(error) not in unmet:
                    raise
        return self._whose(key, writer)

    def _whose(self, key: str, writer: str) -> tuple[Stat | None, bool]:
        with contextlib.suppress(NotFound):
            found = self._look(key)
            names = {name.lower(): text for name, text in found["Metadata"].items()}
            return _stat(key, found), names.get(WRITER) == writer
        return None, False

    def _request(self, key: str, data: bytes, writer: str) -> dict[str, Any]:
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        request: dict[str, Any] = {
            "Bucket": self.bucket,
            "Key": self._full(checked_key(key)),
            "Body": data,
            "ContentMD5": base64.b64encode(digest).decode(),
            "Metadata": {WRITER: writer},
        }
        if self.storage.kms_key_id:
            request |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.storage.kms_key_id}
        return request

    def _read(self, key: str, part: Mapping[str, Any]) -> bytes:
        full = self._full(checked_key(key))
        with self._told("read", key):
            try:
                return retry(
                    lambda: self._client.get_object(Bucket=self.bucket, Key=full, **part)["Body"].read(),
                    lambda error: isinstance(error, BROKEN_OFF),
                    self.storage.max_attempts,
                )
            except ClientError as error:
                if code_of(error) in ("InvalidRange", "416"):
                    return b""
                if code_of(error) in UNMET:
                    raise Changed(f"{self.url}/{key} was replaced while it was read; read it again") from error
                raise

    def _look(self, key: str) -> Mapping[str, Any]:
        with self._told("look at", key):
            return self._client.head_object(Bucket=self.bucket, Key=self._full(checked_key(key)))

    def _listed(self, entry: Mapping[str, Any]) -> Stat:
        key = entry["Key"].removeprefix(f"{self.prefix}/" if self.prefix else "")
        return Stat(key, entry["Size"], _etag(entry), entry["LastModified"].timestamp())

    @contextlib.contextmanager
    def _told(self, action: str, key: str) -> Iterator[None]:
        """Translate what boto3 raises."""
        try:
            yield
        except FOREIGN as error:
            # To a listing or a write, 404 says that there is no such bucket, or no S3 at all.
            of_object = key != "" and action not in ("list", "write")
            if of_object and isinstance(error, ClientError) and code_of(error) in ABSENT:
                raise NotFound(f"no object {self.url}/{key}") from error
            raise translate(error, action, f"{self.url}/{key}".rstrip("/"), self._endpoint()) from error

    def _endpoint(self) -> str:
        try:
            return self._client.meta.endpoint_url
        except FOREIGN:
            return self.storage.endpoint_url or "the default endpoint"


def _conflict(error: Exception) -> bool:
    return isinstance(error, ClientError) and code_of(error) in CONFLICT


def _stat(key: str, found: Mapping[str, Any]) -> Stat:
    return Stat(key, found["ContentLength"], _etag(found), found["LastModified"].timestamp())


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def _date(answer: Mapping[str, Any]) -> float | None:
    """When it was answered, by the store's clock; RFC 9110 (6.6.1) asks every server that has a clock to say."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(date).timestamp() if date else None
