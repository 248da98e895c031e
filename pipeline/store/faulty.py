"""A store that fails on purpose, the same way each time.

    fault         is the object written?   what the caller sees
    crash_before  no                       Crash
    crash_after   yes                      Crash
    unavailable   no                       StorageError (503, after all tries)
    reset         no                       StorageError (connection reset)
    lost_answer   yes                      StorageError (connection reset)
    slow          yes, later               the answer

The last two errors read the same, as they do in life. Faults are plain data and count calls of their own method and key
pattern, so a schedule means the same whatever else runs beside it.
"""

from __future__ import annotations

import fnmatch
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from configs.errors import StorageError
from pipeline.fault_points import Crash
from pipeline.store.base import Stat, Store

FaultKind = Literal["crash_before", "crash_after", "unavailable", "reset", "lost_answer", "slow"]
Method = Literal["put_if_absent", "put_if_match", "put", "get", "get_range", "head", "list", "delete", "now"]

RESET = "connection reset by peer; whether it was written is unknown; call again"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One fault: calls `nth` to `nth + times - 1` of `method` with a key like `key` fail."""

    kind: FaultKind
    method: Method | Literal["*"] = "*"
    key: str = "*"
    nth: int = 1
    times: int = 1
    delay_s: float = 0.0
    """How late a `slow` call is."""


@dataclass(slots=True)
class _Calls:
    """How often each fault's calls were made, over a store and its children."""

    counts: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[object, ...]:
        return _Calls, ()

    def due(self, number: int, fault: StoreFault) -> bool:
        with self.lock:
            self.counts[number] += 1
            return fault.nth <= self.counts[number] < fault.nth + fault.times


@dataclass(frozen=True, slots=True)
class FaultyStore:
    """See the module's docstring. Children share the count; a copy in another process starts from zero."""

    inner: Store
    schedule: tuple[StoreFault, ...] = ()
    calls: _Calls = field(default_factory=_Calls, repr=False, compare=False)

    @property
    def url(self) -> str:
        return self.inner.url

    def put_if_absent(self, key: str, data: bytes) -> Stat:
        return self._call("put_if_absent", key, lambda: self.inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> Stat:
        return self._call("put_if_match", key, lambda: self.inner.put_if_match(key, data, etag))

    def put(self, key: str, data: bytes) -> Stat:
        return self._call("put", key, lambda: self.inner.put(key, data))

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        return self._call("get_range", key, lambda: self.inner.get_range(key, start, length, etag))

    def head(self, key: str) -> Stat:
        return self._call("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        return self._call("list", prefix, lambda: self.inner.list(prefix))

    def delete(self, key: str) -> None:
        return self._call("delete", key, lambda: self.inner.delete(key))

    def now(self) -> float:
        return self._call("now", "", self.inner.now)

    def children(self) -> Sequence[str]:
        return self._call("list", "", self.inner.children)

    def child(self, name: str) -> FaultyStore:
        return FaultyStore(self.inner.child(name), self.schedule, self.calls)

    def check(self) -> None:
        self.inner.check()

    def _call(self, method: Method, key: str, call: Callable[[], Answer]) -> Answer:
        matching = [
            fault
            for number, fault in enumerate(self.schedule)
            if fault.method in ("*", method) and fnmatch.fnmatchcase(key, fault.key) and self.calls.due(number, fault)
        ]
        where = f"{method} {self.url}/{key}"
        for fault in matching:
            _before(fault, where)
        answer = call()
        for fault in matching:
            _after(fault, where)
        return answer


def _before(fault: StoreFault, where: str) -> None:
    match fault.kind:
        case "crash_before":
            raise Crash(f"before {where}")
        case "unavailable":
            raise StorageError(f"{where}: 503 SlowDown, also after all tries; resume later")
        case "reset":
            raise StorageError(f"{where}: {RESET}")
        case "slow":
            time.sleep(fault.delay_s)


def _after(fault: StoreFault, where: str) -> None:
    match fault.kind:
        case "crash_after":
            raise Crash(f"after {where}")
        case "lost_answer":
            raise StorageError(f"{where}: {RESET}")
