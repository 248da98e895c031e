"""One store interface: whole objects by key, created if absent or replaced if unchanged.

    put_if_absent(key, data)          -> Stat; raises AlreadyExists     S3 If-None-Match: *   disk: link(2)
    put_if_match(key, data, etag)     -> Stat; raises Changed           S3 If-Match           disk: flock + replace
    put(key, data)                    -> Stat; overwrites               for snapshots that only their writer owns
    get(key) / head(key)              -> bytes / Stat; raises NotFound
    list(prefix)                      -> Stats in key order, keys complete
    delete(key)                       -> None, also if it is gone
    now()                             -> the clock that `Stat.modified` is told by

An object is visible whole or not at all, and is on disk (fsync) or in S3 when `put*` returns. Keys use `/`, hold no
empty part and no part that starts with a dot (see `key`). Everything else that can go wrong is StorageError with the
key and the next step, after retries with backoff. All methods block and may be called from several threads.

A StorageError from `put*` whose answer got lost leaves open whether the object was written; calling again is safe, and
`put_if_absent` and `put_if_match` recognize their own object within one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from configs.errors import StorageError


class NotFound(StorageError):
    """No object under this key."""


class AlreadyExists(StorageError):
    """`put_if_absent` found an object under this key."""


class Changed(StorageError):
    """`put_if_match` or `get_range` found another version than was asked for; the former also raises it for none."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an object without reading it."""

    key: str
    size: int
    etag: str
    """Opaque; changes with the content, and may be the same for the same content."""
    modified: float
    """Seconds since the epoch, by the store's clock; whole seconds on S3."""


class Store(Protocol):
    """A folder of objects, local or in S3."""

    @property
    def url(self) -> str:
        """Where it lies, as a user would type it: an absolute path or s3://bucket/prefix."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> Stat: ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> Stat: ...

    def put(self, key: str, data: bytes) -> Stat: ...

    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        """At most `length` bytes from byte `start`; fewer, or none, where the object ends earlier. Given an etag, those
        of that version, or Changed."""
        ...

    def head(self, key: str) -> Stat: ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object whose key starts with `prefix` (any text, not only whole folders), in key order."""
        ...

    def delete(self, key: str) -> None: ...

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, so that the age of an object needs no second clock."""
        ...

    def children(self) -> Sequence[str]:
        """Names of the sub-folders that hold an object at any depth, sorted. Some stores name one a while longer."""
        ...

    def child(self, name: str) -> Store:
        """The store of a sub-folder, which need not exist yet."""
        ...

    def check(self) -> None:
        """Raise StorageError, with the cause and the next step, unless it can be written, read, listed and deleted."""
        ...
