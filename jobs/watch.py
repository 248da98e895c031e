"""What a driver does beside its main thread, which waits for Ray or the store: lease, progress, the wish to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from configs.errors import RunConflict, RunFailed, TooManyErrors
from jobs.attempt import Attempt
from jobs.progress import Progress
from pipeline.error_rate import refuse_together
from pipeline.layout import STOP
from pipeline.lease import Lease
from pipeline.pulse import engine_snapshots, fold
from pipeline.run_state import State
from pipeline.store.base import NotFound, Store

LOOK_PERIOD_S = 1.0
LEAVE_S = 5.0
"""How long the end of a run waits for a look at the store that is under way."""


class Watch:
    """Beside the main thread: beats the lease, draws the progress line, and ends the run when it is asked to."""

    def __init__(self, store: Store, attempt: Attempt, lease: Lease) -> None:
        self._store = store
        self._attempt = attempt
        self._lease = lease
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._progress: Progress | None = None
        self._on_first_engine: Callable[[], None] | None = None
        self._max_engines = 0
        self._max_error_rate = 1.0
        self._pulse_period_s = LOOK_PERIOD_S
        self._pulse_at = 0.0
        self.ended: State | None = None
        self.failure: RunFailed | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Beat the lease, and interrupt the main thread (KeyboardInterrupt) when the run is to end: see `ended`."""
        thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(LEAVE_S)

    @contextlib.contextmanager
    def following(
        self,
        progress: Progress,
        max_engines: int,
        max_error_rate: float,
        heartbeat_s: float,
        on_first_engine: Callable[[], None] | None,
    ) -> Iterator[None]:
        """Meanwhile engines work: draw how far they are.

        Args:
            max_engines: more than so many, one after the other, are too many.
            max_error_rate: of the samples of all engines together.
            heartbeat_s: of each engine; to look much more often would show the same.
            on_first_engine: called once an engine is up.
        """
        with self._lock:
            self._max_engines, self._max_error_rate = max_engines, max_error_rate
            self._on_first_engine = on_first_engine
            self._pulse_period_s = heartbeat_s / 2
            self._progress = progress
        try:
            yield
        finally:
            with self._lock:
                self._progress = None
                progress.draw(final=True)

    def receipt(self, receipt: Any) -> None:
        with self._lock:
            if self._progress is not None:
                self._progress.receipt(receipt)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_PERIOD_S):
            if self._lease.is_due() and not self._lease.lost:
                self._beat()
            with contextlib.suppress(Exception):  # a store that stutters must not end a run that is generating
                self._look()

    def _look(self) -> None:
        if self._progress is None:
            return
        if time.monotonic() - self._pulse_at >= self._pulse_period_s:
            self._pulse_at = time.monotonic()
            self._look_at_engines()
        with self._lock:
            if self._progress is not None:
                self._progress.draw()

    def _look_at_engines(self) -> None:
        snapshots = engine_snapshots(self._store, self._attempt.number)
        pulse = fold(snapshots)
        if pulse.up and self._on_first_engine is not None:
            self._on_first_engine()
            self._on_first_engine = None
        with self._lock:
            if self._progress is not None:
                self._progress.pulse(pulse)
        if self.ended is None and self._progress is not None:
            self._judge(snapshots)

    def _judge(self, snapshots: Sequence[Mapping[str, Any]]) -> None:
        if len(snapshots) > self._max_engines:
            self.failure = RunFailed(
                "more engines died under this driver than limits.max_engine_deaths allows; look for the cause in Ray's "
                "worker logs\n"
                "committed shards stay; `draftfleet resume` goes on from them"
            )
        try:
            refuse_together([each["error_rate"] for each in snapshots], self._max_error_rate)
        except TooManyErrors as error:
            self.failure = error
        if self.failure is not None:
            self._end("failed")

    def _beat(self) -> None:
        try:
            self._lease.heartbeat(self._told())
            if self._stop_requested():
                self._end("cancelled")
        except RunConflict as conflict:
            print(f"\n{conflict}; this driver leaves it", file=sys.stderr)
            self._end("interrupted")
        except Exception as error:
            print(f"\nlease heartbeat failed, trying again: {error}", file=sys.stderr)

    def _told(self) -> dict[str, Any] | None:
        """What `status` shows of a run; None before and after its engines: then it keeps what was told last."""
        with self._lock:
            reading = self._progress.reading() if self._progress is not None else None
        if reading is None:
            return None
        return {"done": reading.done, "total": reading.total, "errors": reading.errors, "line": reading.text()}

    def _stop_requested(self) -> bool:
        try:
            self._store.head(STOP)
        except NotFound:
            return False
        return True

    def _end(self, state: State) -> None:
        """Leave the main thread's wait on Ray; a real signal, because that wait is in C++ and watches for one."""
        if self.ended is None and not self._over.is_set():
            self.ended = state
            os.kill(os.getpid(), signal.SIGINT)
