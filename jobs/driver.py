"""One attempt at a run: take the lease, drive the shards that are missing, finish or say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from configs import errors
from configs.errors import DraftfleetError, RunConflict
from configs.job import Job
from jobs.machine import fleet_for
from jobs.progress import Progress
from pipeline.actor import Assignment
from pipeline.bystanders import yield_to_engines
from pipeline.finalize import finalize
from pipeline.fleet import Fleet
from pipeline.footer import read_footers
from pipeline.forecast import Forecast
from pipeline.graph import receipts
from pipeline.joined_ray import join
from pipeline.layout import REJECTED_KEY, STOP, ledger_key, plan_rejected
from pipeline.lease import Lease, LeaseOwner, read_lease, refusal, this_machine
from pipeline.local_ray import start_local
from pipeline.provenance import git_commit, versions
from pipeline.pulse import read_pulse
from pipeline.run_state import RunView, State, open_run
from pipeline.store.base import AlreadyExists, NotFound, Store
from pipeline.usage import Usage

EXIT_CODES: dict[State, int] = {
    "completed": 0,
    "completed_with_errors": 0,
    "failed": 3,
    "cancelled": 4,
    "interrupted": 5,
}
LOOK_PERIOD_S = 1.0

_EXCEPTION = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))(?:: (?P<message>.*))?$", re.MULTILINE
)
"""A traceback's last line."""


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


def drive(job: Job, store: Store, run: str, takeover: bool = False) -> State:
    """Do what is missing of a planned run on Ray, with a progress line, and return the state that it is left in.

    Raises:
        RunConflict: another driver holds the run.
        StorageError: the store failed for longer than its retries.
    """
    if reason := refusal(read_lease(store), takeover):
        raise RunConflict(reason)  # before this attempt leaves any trace
    attempt = Attempt.begin(store, run)
    lease = Lease.acquire(store, _owner(attempt), takeover=takeover)
    state: State = "interrupted"  # whatever raises below, a resume can go on
    try:
        commit_rejected(open_run(store))
        state = _drive(job, open_run(store), attempt, lease)
    finally:
        with contextlib.suppress(RunConflict):  # taken over: the run is another driver's to describe
            lease.release(state)
        attempt.note(state=state, ended=time.time())
    return state


def commit_rejected(view: RunView) -> None:
    """The rows that failed while planning become the run's first committed shard."""
    if view.plan.rejected:
        with contextlib.suppress(AlreadyExists):
            view.store.put_if_absent(REJECTED_KEY, view.store.get(plan_rejected(view.plan.plan_hash)))


def _drive(job: Job, view: RunView, attempt: Attempt, lease: Lease) -> State:
    with contextlib.suppress(NotFound):
        view.store.delete(STOP)  # a stop that ended an earlier attempt is not for this one
    if view.pending:
        before = sum((footer.usage for footer in read_footers(view.store, view.data_keys)), Usage())
        progress = Progress(view.plan.num_samples, Forecast(view.pending), before)
        ended = _generate(job, view, attempt, lease, progress)
        if ended is not None:
            return ended
    state: State = finalize(open_run(view.store))["state"]
    return state


def _generate(job: Job, view: RunView, attempt: Attempt, lease: Lease, progress: Progress) -> State | None:
    """Run the pending shards; None when they are all done, else the state of an early end."""
    is_local = job.cluster.address == "local"
    watch = Watch(view.store, attempt, lease, progress, yield_to_engines if is_local else None)
    with cluster(job, view) as fleet:
        assignment = _assignment(job, view, attempt.number, fleet)
        attempt.note(fleet_ready=time.time(), workers=fleet.workers, job=job.model_dump(mode="json"))
        with watch.watching():
            try:
                for receipt in receipts(view.pending, assignment, fleet):
                    watch.receipt(receipt)
            except KeyboardInterrupt:
                return watch.ended or "interrupted"
            except RayError as error:
                raise told(error) from error
    return None


def told(error: RayError) -> DraftfleetError:
    """What went wrong in an engine actor, in its own words where it spoke ours."""
    causes: list[BaseException] = [error]
    while (cause := getattr(causes[-1], "cause", None) or causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
        if isinstance(cause, DraftfleetError):
            return cause
    return DraftfleetError(
        f"an engine actor failed: {root_cause(str(error))}\n"
        "committed shards stay; `draftfleet resume` goes on from them"
    )


def root_cause(text: str) -> str:
    """What the tracebacks in a message of Ray, which keeps them as text only, began with; or what we said of it."""
    found = list(_EXCEPTION.finditer(text))
    ours = [exception["message"] for exception in found if exception["kind"].startswith(errors.__name__)]
    if ours:
        return str(ours[-1])
    return found[0][0] if found else text.strip()


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
        self.ended: State | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        previous = signal.signal(signal.SIGTERM, _terminate)
        thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            signal.signal(signal.SIGTERM, previous)
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
        pulse = read_pulse(self._store, self._attempt.number)
        if pulse.engines and self._on_first_engine is not None:
            self._on_first_engine()
            self._on_first_engine = None
        with self._lock:
            self._progress.pulse(pulse)
            self._progress.draw()

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


def _terminate(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def cluster(job: Job, view: RunView) -> Iterator[Fleet]:
    """Ray, started here or joined, and the fleet that fits it."""
    if job.cluster.address == "local":
        fleet = fleet_for(job, view.plan, None)
        start_local(fleet.logical_cpus)
    else:
        join(job.cluster.address)
        fleet = fleet_for(job, view.plan, ray.cluster_resources())
    try:
        yield fleet
    finally:
        ray.shutdown()


def _owner(attempt: Attempt) -> LeaseOwner:
    return LeaseOwner(os.uname().nodename, os.getpid(), attempt.number, attempt.started, this_machine())


def _assignment(job: Job, view: RunView, attempt: int, fleet: Fleet) -> Assignment:
    local = "://" not in view.store.url
    return Assignment(
        run_url=view.store.url,
        storage=job.storage,
        run=view.plan.run,
        attempt=attempt,
        threads=fleet.threads,
        shards_in_flight=fleet.shards_in_flight,
        heartbeat_s=2.0 if local else 10.0,
        fleet={"workers": fleet.workers, "shards_in_flight": fleet.shards_in_flight},
        job=job.model_dump_json(),
    )
