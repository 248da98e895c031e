"""What a driver does beside its main thread, which waits for Ray: progress, lease, the wish to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from configs.errors import RunConflict, RunFailed, TooManyErrors
from jobs.attempt import Attempt
from jobs.progress import Progress
from jobs.terminated import handle_sigterm
from pipeline.error_rate import refuse_together
from pipeline.layout import STOP
from pipeline.lease import Lease
from pipeline.ledger import STARTING
from pipeline.pulse import engine_snapshots, fold
from pipeline.run_state import State
from pipeline.store.base import NotFound, Store

LOOK_PERIOD_S = 1.0


class Watch:
    """Beside the main thread: draws the progress line, beats the lease, and ends the run when it is asked to."""

    def __init__(
        self,
        store: Store,
        attempt: Attempt,
        lease: Lease,
        progress: Progress,
        on_first_engine: Callable[[], None] | None,
    ) -> None:
        """`on_first_engine`: called once an engine is up."""
        self._store = store
        self._attempt = attempt
        self._lease = lease
        self._progress = progress
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._on_first_engine = on_first_engine
        self._max_engines = 0
        self._max_error_rate = 1.0
        self.ended: State | None = None
        self.failure: RunFailed | None = None

    @contextlib.contextmanager
    def watching(self, max_engines: int, max_error_rate: float) -> Iterator[None]:
        """`max_engines`: more than so many, one after the other, are too many. `max_error_rate`: of all together."""
        self._max_engines = max_engines
        self._max_error_rate = max_error_rate
        handle_sigterm()
        thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            with self._lock:
                self._progress.draw(final=True)

    def receipt(self, receipt: Any) -> None:
        with self._lock:
            self._progress.receipt(receipt)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_PERIOD_S):
            with contextlib.suppress(Exception):  # a store that stutters must not end a run that is generating
                self._look()
            if self._lease.is_due():
                self._beat()

    def _look(self) -> None:
        snapshots = engine_snapshots(self._store, self._attempt.number)
        pulse = fold(each for each in snapshots if each["part"] not in STARTING)
        if pulse.engines and self._on_first_engine is not None:
            self._on_first_engine()
            self._on_first_engine = None
        with self._lock:
            self._progress.pulse(pulse)
            self._progress.draw()
        if self.failure is None:
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
            with self._lock:
                reading = self._progress.reading()
            self._lease.heartbeat(
                {"done": reading.done, "total": reading.total, "errors": reading.errors, "line": reading.text()}
            )
            if self._stop_requested():
                self._end("cancelled")
        except RunConflict:
            self._end("interrupted")  # another driver took the run over
        except Exception as error:
            print(f"\nlease heartbeat failed, trying again: {error}", file=sys.stderr)

    def _stop_requested(self) -> bool:
        try:
            self._store.head(STOP)
        except NotFound:
            return False
        return True

    def _end(self, state: State) -> None:
        """Leave the main thread's wait on Ray; a real signal, because that wait is in C++ and watches for one."""
        if not self._over.is_set():
            self.ended = state
            os.kill(os.getpid(), signal.SIGINT)
