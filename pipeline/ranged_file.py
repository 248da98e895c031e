"""A stored object as a seekable file, so that Parquet readers fetch only the footer and the row groups they need."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeVar

from pipeline.store.base import Changed, Store

_T = TypeVar("_T")


class RangedFile(io.RawIOBase):
    """Read-only view of one version of an object. Each `read` is one ranged request; wrap it to buffer.

    Raises:
        NotFound: there is no such object.
        Changed: from `read`; it was replaced since it was opened.
    """

    def __init__(self, store: Store, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        stat = store.head(key)
        self._size, self._etag = stat.size, stat.etag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        data = self._store.get_range(self._key, self._position, length, self._etag)
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def read_ranges(store: Store, key: str, read: Callable[[RangedFile], _T]) -> _T:
    """What `read` makes of the object; once more if it was replaced meanwhile, as `resume --retry-errors` does once."""
    try:
        return read(RangedFile(store, key))
    except Changed:
        return read(RangedFile(store, key))
