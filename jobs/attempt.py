"""One driver's work on a run, as its ledger entry tells it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from pipeline.layout import ledger_key
from pipeline.provenance import git_commit, versions
from pipeline.store.base import AlreadyExists, Store


class Attempt:
    """One driver's work on a run: its ledger entry, which only it writes."""

    def __init__(self, store: Store, run: str, number: int) -> None:
        self.number = number
        self.started = time.time()
        self._store = store
        self._entry: dict[str, Any] = {
            "kind": "driver",
            "run": run,
            "attempt": number,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "git_commit": git_commit(),
            "versions": versions(),
            "started": self.started,
            "state": "running",
        }

    @classmethod
    def begin(cls, store: Store, run: str) -> Attempt:
        """Claim the next attempt number."""
        number = 1
        while True:
            attempt = cls(store, run, number)
            try:
                store.put_if_absent(attempt._key, attempt._body())
                return attempt
            except AlreadyExists:
                number += 1

    def note(self, **facts: Any) -> None:
        """Add facts to the entry."""
        self._entry |= facts
        self._store.put(self._key, self._body())

    @property
    def _key(self) -> str:
        return ledger_key(f"driver-{self.number}")

    def _body(self) -> bytes:
        return json.dumps({**self._entry, "updated": time.time()}).encode()
