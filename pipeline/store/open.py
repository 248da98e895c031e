"""From what a user types to a store."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from configs.errors import StorageError
from configs.job import Storage
from pipeline.store.base import Store
from pipeline.store.local import LocalStore
from pipeline.store.s3 import S3Store
from pipeline.store.s3_client import impatient

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
S3_SCHEMES = ("s3", "s3a", "s3n")


def open_store(url: str, storage: Storage) -> Store:
    """The store of `s3://bucket/prefix` (also `s3a://`, `s3n://`), `file:///folder`, or a local path, relative ones
    from the working directory; slashes at the end mean nothing. Touches nothing yet: see `Store.check`.

    Raises:
        StorageError: another scheme, a URL without a bucket, or no path at all.
    """
    if not url.strip():
        raise StorageError("the path is empty; give a folder or s3://bucket/prefix")
    found = _SCHEME.match(url)
    if found is None:
        return LocalStore(url)
    scheme = found[1].lower()
    if scheme in S3_SCHEMES:
        return _open_s3(url[found.end() :], url, storage)
    if scheme == "file":
        return _open_file(url)
    raise StorageError(f"{url}: {scheme}:// is not supported; use s3://bucket/prefix, file:///folder or a path")


def open_answering(url: str, storage: Storage) -> Store:
    """`open_store`, after S3 has answered one small request: without it, a wrong endpoint is told only when all of
    `storage.max_attempts` have run into their timeouts. A local path is only opened.

    Raises:
        StorageError: as `open_store`, or S3 refuses or does not answer.
    """
    store = open_store(url, storage)
    if isinstance(store, S3Store):
        replace(store, storage=impatient(storage)).now()
    return store


def _open_s3(rest: str, url: str, storage: Storage) -> S3Store:
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise StorageError(f"{url} names no bucket; write s3://bucket/prefix")
    return S3Store(bucket, prefix, storage)


def _open_file(url: str) -> LocalStore:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise StorageError(f"{url} names the host {parts.netloc}; write file:///folder with three slashes")
    return LocalStore(unquote(parts.path))
