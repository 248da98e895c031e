"""One attempt at a run: take the lease, drive the shards that are missing, finish or say how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import ray
from ray.exceptions import RayError

from configs import errors
from configs.errors import DraftfleetError, RunConflict, RunFailed, StorageError
from configs.job import Job
from jobs.attempt import Attempt
from jobs.machine import fleet_for
from jobs.progress import Progress
from jobs.terminated import handler_replaced
from jobs.watch import Watch
from pipeline.actor import Assignment
from pipeline.bystanders import yield_to_engines
from pipeline.error_rate import ErrorRate, refuse_hopeless
from pipeline.finalize import finalize
from pipeline.fleet import Fleet, refuse_small_cache
from pipeline.footer import read_footers
from pipeline.forecast import Forecast
from pipeline.graph import receipts
from pipeline.joined_ray import join
from pipeline.layout import MANIFEST, REJECTED_KEY, STOP, plan_rejected
from pipeline.lease import Lease, LeaseOwner, read_lease, refusal, start_ticks, this_machine
from pipeline.local_ray import start_local
from pipeline.memory import recall, remember
from pipeline.plan import PlannedShard
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
_EXCEPTION = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))(?:: (?P<message>.*))?$", re.MULTILINE
)
"""A traceback's last line."""
LEAVE_S = 10.0
"""How long the end of an attempt waits for the store."""


def drive(job: Job, store: Store, run: str, takeover: bool = False, retry_errors: bool = False) -> State:
    """Do what is missing of a planned run on Ray, with a progress line, and return the state that it is left in; it is
    `interrupted` after a signal.

    `retry_errors`: also try the failed samples of committed shards again.

    Raises:
        RunConflict: another driver holds the run.
        RunFailed: it gave up: too many errors, or engine deaths.
        StorageError: the store failed for longer than its retries.
    """
    if reason := refusal(read_lease(store), takeover):
        raise RunConflict(reason)  # before this attempt leaves any trace
    store.delete(STOP)  # it ended an earlier attempt; one that is written from now on is for this one
    attempt = Attempt.begin(store, run)
    lease = _acquire(store, attempt, takeover)
    watch = Watch(store, attempt, lease)
    state: State = "interrupted"  # whatever raises below, a resume can go on
    try:
        with watch.watching():
            commit_rejected(open_run(store))
            state = _drive(job, open_run(store), attempt, watch, retry_errors)
    except KeyboardInterrupt:
        if state == "interrupted":  # and not a state that the run had reached a moment before
            state = watch.ended or state
        if watch.failure is not None:
            raise watch.failure from None
    except RunFailed:
        state = "failed"
        raise
    except StorageError as error:
        error.exit_code = EXIT_CODES[state]  # not a wrong setting, which would have been told before: a resume may do
        raise
    finally:
        _leave_within(LEAVE_S, lambda: _leave(lease, attempt, state))
    return state


def _acquire(store: Store, attempt: Attempt, takeover: bool) -> Lease:
    """The lease; an attempt that does not get it is none, and its entry says so."""
    try:
        return Lease.acquire(store, _owner(attempt), takeover=takeover)
    except DraftfleetError:
        with contextlib.suppress(StorageError):
            attempt.note(state="refused", ended=time.time())
        raise


def _leave(lease: Lease, attempt: Attempt, state: State) -> None:
    # Taken over, the run is another driver's to describe; where the store is away, the lease will grow old instead.
    with contextlib.suppress(RunConflict, StorageError):
        lease.release(state)
    with contextlib.suppress(StorageError):
        attempt.note(state=state, ended=time.time())


def _leave_within(seconds: float, leave: Callable[[], None]) -> None:
    """Do what a store that is away could hold up: whoever ended this process waits for half a minute, then kills it."""
    thread = threading.Thread(target=leave, name="leave", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        print(f"the store does not answer for {seconds:.0f} s; leaving without its answer", file=sys.stderr)


def commit_rejected(view: RunView) -> None:
    """The rows that failed while planning become the run's first committed shard."""
    if view.plan.rejected:
        with contextlib.suppress(AlreadyExists):
            view.store.put_if_absent(REJECTED_KEY, view.store.get(plan_rejected(view.plan.plan_hash)))


def _drive(job: Job, view: RunView, attempt: Attempt, watch: Watch, retry_errors: bool) -> State:
    committed = list(read_footers(view.store, view.data_keys))
    again = frozenset(footer.shard for footer in committed if retry_errors and footer.usage.samples_error)
    shards = [shard for shard in view.plan.shards if shard.shard not in view.done or shard.shard in again]
    if shards:
        refuse_hopeless(view.plan.rejected, view.plan.num_samples, job.limits.max_error_rate)
        refuse_small_cache(job, view.plan.longest_request_tokens)
        with contextlib.suppress(NotFound):
            view.store.delete(MANIFEST)
        before = sum((footer.usage for footer in committed if footer.shard not in again), Usage())
        known = recall(job, view, committed, attempt.number)
        _generate(job, view, shards, before, known, attempt, watch, retry_errors)
    state: State = finalize(open_run(view.store), job.limits.max_error_rate)["state"]
    if shards:
        _remember(job, view.store)
    return state


def _remember(job: Job, store: Store) -> None:
    """The run is done; that what it learned cannot be kept takes nothing away from it."""
    try:
        remember(job, open_run(store))
    except DraftfleetError as error:
        print(f"what this run learned of drafting is not kept: {error}", file=sys.stderr)


def _generate(
    job: Job,
    view: RunView,
    shards: Sequence[PlannedShard],
    before: Usage,
    known: str,
    attempt: Attempt,
    watch: Watch,
    retry_errors: bool,
) -> None:
    """Run these shards to their end; `before`: what earlier attempts committed; `known`: key of what is known of
    drafting."""
    error_rate = ErrorRate(job.limits.max_error_rate)
    with cluster(job, view) as fleet:
        assignment = replace(_assignment(job, view, attempt.number, fleet), retry_errors=retry_errors, known=known)
        attempt.note(fleet_ready=time.time(), workers=fleet.workers, job=job.model_dump(mode="json"))
        heartbeat_s = assignment.heartbeat_s
        progress = Progress(view.plan.num_samples, Forecast(shards), before, window_s=2 * heartbeat_s)
        max_engines = min(fleet.workers, len(shards)) + job.limits.max_engine_deaths
        on_first_engine = yield_to_engines if job.cluster.address == "local" else None
        with watch.following(progress, max_engines, job.limits.max_error_rate, heartbeat_s, on_first_engine):
            try:
                for receipt in receipts(shards, assignment, fleet):
                    watch.receipt(receipt)
                    if receipt.shard not in view.done:  # of samples that failed once, many may fail again
                        error_rate.add(samples=receipt.usage.samples, errors=receipt.usage.errors)
            except RayError as error:
                raise told(error) from error


def told(error: RayError) -> DraftfleetError:
    """What went wrong in an engine actor, in its own words where it spoke ours."""
    causes: list[BaseException] = [error]
    while (cause := getattr(causes[-1], "cause", None) or causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
        if isinstance(cause, DraftfleetError):
            return cause
    kind, cause_told = root_cause(str(error))
    return kind(f"an engine actor failed: {cause_told}\ncommitted shards stay; `draftfleet resume` goes on from them")


def root_cause(text: str) -> tuple[type[DraftfleetError], str]:
    """What the tracebacks in a message of Ray, which keeps them as text only, began with; or what we said of it. Of our
    own kinds only StorageError is kept: it is trouble that may pass, at whatever moment the engine met it."""
    found = list(_EXCEPTION.finditer(text))
    ours = [exception for exception in found if exception["kind"].startswith(errors.__name__)]
    if ours:
        is_storage = ours[-1]["kind"].endswith(f".{StorageError.__name__}")
        return StorageError if is_storage else DraftfleetError, ours[-1]["message"]
    return DraftfleetError, found[0][0] if found else text.strip()


@contextlib.contextmanager
def cluster(job: Job, view: RunView) -> Iterator[Fleet]:
    """Ray, started here or joined, and the fleet that fits it."""
    try:
        with handler_replaced():
            fleet = _started(job, view)
        yield fleet
    finally:
        ray.shutdown()


def _started(job: Job, view: RunView) -> Fleet:
    if job.cluster.address == "local":
        fleet = fleet_for(job, view.plan, None)
        start_local(fleet.logical_cpus)
        return fleet
    join(job.cluster.address)
    return fleet_for(job, view.plan, ray.cluster_resources())


def _owner(attempt: Attempt) -> LeaseOwner:
    pid = os.getpid()
    return LeaseOwner(os.uname().nodename, pid, attempt.number, attempt.started, this_machine(), start_ticks(pid))


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
