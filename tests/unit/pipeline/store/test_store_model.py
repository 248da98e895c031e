"""Any sequence of calls does to a store what it does to a dictionary: on disk, and on a real S3 server."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from s3_server import S3Bucket

from pipeline.store.base import AlreadyExists, Changed, NotFound, Store
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store

KEYS = st.sampled_from(["data/a-000001.parquet", "data/a.b", "data/a/b", "_lease.json", "ü/😀"])
BODIES = st.binary(max_size=40)


class StoreModel(RuleBasedStateMachine):
    """`self.objects` is the dictionary; `self.etags` every etag that a key has had, with the bytes it stood for."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.etags: dict[str, list[tuple[str, bytes]]] = {}

    def written(self, key: str, body: bytes, etag: str) -> None:
        self.objects[key] = body
        self.etags.setdefault(key, []).append((etag, body))

    @rule(key=KEYS, body=BODIES)
    def create(self, key: str, body: bytes) -> None:
        try:
            stat = self.store.put_if_absent(key, body)
        except AlreadyExists:
            assert key in self.objects
        else:
            assert key not in self.objects
            assert stat.size == len(body)
            self.written(key, body, stat.etag)

    @rule(key=KEYS, body=BODIES)
    def overwrite(self, key: str, body: bytes) -> None:
        self.written(key, body, self.store.put(key, body).etag)

    @precondition(lambda self: self.etags)
    @rule(data=st.data(), body=BODIES)
    def swap(self, data: st.DataObject, body: bytes) -> None:
        key = data.draw(st.sampled_from(sorted(self.etags)))
        number = data.draw(st.integers(0, len(self.etags[key]) - 1))
        etag, stood_for = self.etags[key][number]
        current = key in self.objects and number == len(self.etags[key]) - 1
        try:
            stat = self.store.put_if_match(key, body, etag)
        except Changed:
            assert not current
        else:
            # The same bytes may have the same etag; other bytes never.
            assert current or self.objects.get(key) == stood_for
            self.written(key, body, stat.etag)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.objects.pop(key, None)

    @rule(key=KEYS, start=st.integers(0, 50), length=st.integers(0, 50))
    def read(self, key: str, start: int, length: int) -> None:
        if key not in self.objects:
            with pytest.raises(NotFound):
                self.store.get_range(key, start, length)
            return
        body = self.objects[key]
        assert self.store.get(key) == body
        assert self.store.get_range(key, start, length, self.etags[key][-1][0]) == body[start : start + length]
        assert self.store.head(key).size == len(body)

    @invariant()
    def listed(self) -> None:
        found = {stat.key: stat.size for stat in self.store.list("")}
        assert list(found) == sorted(self.objects)
        assert found == {key: len(body) for key, body in self.objects.items()}


def test_local_disk(tmp_path: Path) -> None:
    class OnDisk(StoreModel):
        def __init__(self) -> None:
            super().__init__()
            self.store = LocalStore(tempfile.mkdtemp(dir=tmp_path))

    limits = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(OnDisk, settings=limits)


def test_s3(s3_bucket: S3Bucket) -> None:
    class OnServer(StoreModel):
        number = 0

        def __init__(self) -> None:
            super().__init__()
            OnServer.number += 1
            self.store = open_store(f"{s3_bucket.url}/{self.number}", s3_bucket.storage)

    checks = [HealthCheck.function_scoped_fixture]
    limits = settings(max_examples=10, stateful_step_count=15, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(OnServer, settings=limits)
