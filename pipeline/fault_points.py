"""Places in the commit where things may go wrong on purpose.

    before_put      the shard is generated, nothing is stored
    after_put       the data object exists, nobody has been told
    before_receipt  everything is stored, the driver has not heard of it

Production code calls `reach` at each of them; without faults given to the constructor that does nothing. Faults are
plain data, so that they travel to a worker like any other argument.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Point = Literal["before_put", "after_put", "before_receipt"]


class Crash(BaseException):
    """The writer dies here. Not an Exception, since whoever handles those goes on living."""


@dataclass(frozen=True, slots=True)
class PointFault:
    """What happens at a point."""

    point: Point
    action: Literal["crash", "kill", "sleep"]
    """Raise Crash, end this process by SIGKILL, or wait for `seconds`."""
    key: str = "*"
    """Pattern of the keys that it happens to (fnmatch)."""
    nth: int = 1
    """At the n-th time that this process passes the point with such a key."""
    seconds: float = 0.0
    once: str | None = None
    """A file: whoever creates it has the fault, so that it happens once over all processes and their restarts."""


class FaultPoints:
    """The faults of one process. Counts its own visits; a copy that travels to another process starts from zero."""

    def __init__(self, faults: Sequence[PointFault] = ()) -> None:
        self.faults = tuple(faults)
        self._visits: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return FaultPoints, (self.faults,)

    def reach(self, point: Point, key: str = "") -> None:
        """Say that the code has come to `point` on its way to committing `key`."""
        for number, fault in enumerate(self.faults):
            if fault.point == point and fnmatch.fnmatchcase(key, fault.key) and self._is_due(number, fault):
                _happen(fault, key)

    def _is_due(self, number: int, fault: PointFault) -> bool:
        with self._lock:
            self._visits[number] += 1
            if self._visits[number] != fault.nth:
                return False
        return fault.once is None or _claim(fault.once)


def _claim(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _happen(fault: PointFault, key: str) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "sleep":
        time.sleep(fault.seconds)
        return
    raise Crash(f"{fault.point} {key}")
