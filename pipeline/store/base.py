"""One store interface: whole objects by key, created if absent or replaced if unchanged.

    put_if_absent(key, data)          -> Stat; raises AlreadyExists     S3 If-None-Match: *   disk: link(2)
    put_if_match(key, data, etag)     -> Stat; raises Changed           S3 If-Match           disk: flock + replace
    put(key, data)                    -> Stat; overwrites               for snapshots that only their writer owns
    get(key) / head(key)              -> bytes / Stat; raises NotFound
    list(prefix)                      -> Stats in key order, keys complete
    delete(key)                       -> None, also if it is gone

An object is visible whole or not at all, and is on disk (fsync) or in S3 when `put*` returns. Keys use `/`, hold no `..` and
no empty part. Everything else that can go wrong is StorageError with the key and the next step, after retries with backoff.
All methods block and may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from configs.errors import StorageError


class NotFound(StorageError):
    """No object under this key."""


class AlreadyExists(StorageError):
    """`put_if_absent` found an object under this key. `stat` describes it if the store could tell."""

    def __init__(self, message: str, stat: Stat | None = None) -> None:
        super().__init__(message)
        self.stat = stat


class Changed(StorageError):
    """`put_if_match` found another version, or none."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an object without reading it."""

    key: str
    size: int
    etag: str
    """Opaque; changes with the content."""
    modified: float
    """Seconds since the epoch, by the store's clock."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """As given to put*; empty in listings."""


class Store(Protocol):
    """A folder of objects, local or in S3."""

    @property
    def url(self) -> str:
        """Where it lies, as a user would type it: an absolute path or s3://bucket/prefix."""
        ...

    def put_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> Stat: ...

    def put_if_match(self, key: str, data: bytes, etag: str, metadata: Mapping[str, str] | None = None) -> Stat: ...

    def put(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> Stat: ...

    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, start: int, length: int) -> bytes: ...

    def head(self, key: str) -> Stat: ...

    def list(self, prefix: str) -> Iterator[Stat]: ...

    def delete(self, key: str) -> None: ...

    def child(self, name: str) -> Store:
        """The store of a sub-folder."""
        ...

    def check(self) -> None:
        """Raise StorageError, naming the cause and the next step, unless it can be written, read, listed and deleted."""
        ...
