"""Does a store keep the promises that commits rest on? Asked once, before anything starts."""

from __future__ import annotations

import contextlib
import uuid

from configs.errors import StorageError
from pipeline.store.base import AlreadyExists, Changed, Store

KNOWN_GOOD = "AWS S3 and SeaweedFS 4.48 honour it"


def probe(store: Store) -> None:
    """Write, read, list and delete one small object, and make sure that a second writer cannot overwrite it.

    Raises:
        StorageError: with the cause and the next step.
    """
    key, data = f"_probe-{uuid.uuid4().hex}", b"draftfleet"
    stat = store.put_if_absent(key, data)
    try:
        if store.get(key) != data:
            raise StorageError(f"{store.url} gave back other bytes than were written to {key}; use another store")
        _second_put_must_fail(store, key)
        _stale_put_must_fail(store, key, stat.etag)
        if [found.key for found in store.list(key)] != [key]:
            raise StorageError(f"{store.url} does not list {key} right after it was written; use another store")
    except BaseException:
        # The first error is the one worth reading: without permission to delete, for example, this fails as well.
        with contextlib.suppress(StorageError):
            store.delete(key)
        raise
    store.delete(key)


def _second_put_must_fail(store: Store, key: str) -> None:
    with contextlib.suppress(AlreadyExists):
        store.put_if_absent(key, b"second")
        raise StorageError(
            f"{store.url}: this store ignores If-None-Match: two writers could overwrite each other; "
            f"use a store that honours conditional writes ({KNOWN_GOOD}) or upgrade it"
        )


def _stale_put_must_fail(store: Store, key: str, etag: str) -> None:
    fresh = store.put_if_match(key, b"third", etag)
    with contextlib.suppress(Changed):
        store.put_if_match(key, b"fourth", etag)
        raise StorageError(
            f"{store.url}: this store ignores If-Match: two drivers could hold the same run; "
            f"use a store that honours conditional writes ({KNOWN_GOOD}) or upgrade it"
        )
    if fresh.etag == etag:
        raise StorageError(f"{store.url}: the etag of {key} did not change with its content; use another store")
