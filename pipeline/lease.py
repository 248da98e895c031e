"""Who drives a run: one object, `_lease.json`, replaced by compare-and-swap at every heartbeat.

    acquire     absent, or left in a final state      take it
                running, heartbeat younger than ttl   RunConflict: somebody is at work
                running, older                        RunConflict, unless `takeover`
                running, its process is gone          take it: it ran on this machine, so that is certain
    heartbeat   unchanged since ours                  replace it
                changed                               RunConflict: somebody took over; stop

Ages are told by the store's clock alone (`Stat.modified` against `Store.now`), to a second on S3. The lease saves
money; that no row is lost or doubled rests on the commit alone, so a driver that lost its lease unawares does no harm.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import RunConflict, StorageError
from pipeline import layout
from pipeline.store.base import AlreadyExists, Changed, NotFound, Stat, Store

TTL_S = 60.0
HEARTBEAT_S = 10.0
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A driver, as a person would look for it."""

    host: str
    pid: int
    attempt: int
    started: float
    """Seconds since the epoch, by the driver's clock."""
    machine: str = ""
    """`this_machine()` there: a host name may be shared by containers, this is not."""
    start_ticks: int | None = None
    """`start_ticks(pid)` there: a pid may come back, and clocks may be set; these stay."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} (host {self.host}, pid {self.pid})"


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What the lease says, and how long ago."""

    owner: LeaseOwner
    state: str
    """`running`, or the final state that `release` wrote."""
    heartbeat_age_s: float
    ttl_s: float
    progress: Mapping[str, Any]
    holder: str
    """Unique for each `acquire`."""
    etag: str
    gone: bool = False
    """The driver ran on this machine, and its process is no more."""

    @property
    def expired(self) -> bool:
        """Running by its word, but gone, or silent for longer than it promised: interrupted."""
        return self.state == RUNNING and (self.gone or self.heartbeat_age_s > self.ttl_s)

    @property
    def alive(self) -> bool:
        return self.state == RUNNING and not self.expired


def read_lease(store: Store) -> LeaseView | None:
    """The lease of the run in `store`, or None if nobody ever drove it.

    Raises:
        StorageError: the store fails, or the object is not a lease.
    """
    try:
        # The etag is read first: if the lease changes in between, a swap against it fails, as it should.
        stat = store.head(layout.LEASE)
        body = store.get(layout.LEASE)
    except NotFound:
        return None
    return _parse(body, stat, store)


def _parse(body: bytes, stat: Stat, store: Store) -> LeaseView:
    age_s = max(0.0, store.now() - stat.modified)
    try:
        said = json.loads(body)
        owner = LeaseOwner(**said["owner"])
        words = (said["state"], age_s, said["ttl_s"], said["progress"], said["holder"])
        return LeaseView(owner, *words, stat.etag, is_gone(owner))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{store.url}/{layout.LEASE} is not a lease ({error}); if nobody drives this run, delete it"
        ) from error


def this_machine() -> str:
    """This boot of this kernel, and this process namespace: where a pid means the same process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def start_ticks(pid: int) -> int | None:
    """When a process of this machine began, in clock ticks since the boot; None if none lives under this pid."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Fields 3 (state) and 22 of proc(5); the second is the command in parentheses, which may hold anything.
    fields = said.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_gone(owner: LeaseOwner) -> bool:
    """Whether the driver certainly does not live any more: it ran here, and its pid is free or another process's."""
    if owner.machine != this_machine():
        return False
    now = start_ticks(owner.pid)
    return now is None or owner.start_ticks not in (None, now)


def refusal(view: LeaseView | None, takeover: bool) -> str | None:
    """Why the lease may not be taken, with the next step; None if it may."""
    if view is None or view.state != RUNNING or view.gone:
        return None
    seen = f"this run is driven by {view.owner}, heartbeat {view.heartbeat_age_s:.0f} s ago"
    if view.alive:
        return f"{seen}; stop that driver (draftfleet stop) or wait for it"
    if takeover:
        return None
    return f"{seen}, longer than the {view.ttl_s:.0f} s it promised; if it is dead, add --takeover"


@dataclass(slots=True)
class Lease:
    """The right to drive a run, held. Made by `acquire`; safe to use from several threads."""

    store: Store
    owner: LeaseOwner
    holder: str
    ttl_s: float
    clock: Callable[[], float]
    etag: str = ""
    lost: bool = False
    _progress: dict[str, Any] = field(default_factory=dict)
    _beaten_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def acquire(
        cls,
        store: Store,
        owner: LeaseOwner,
        *,
        takeover: bool = False,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> Lease:
        """Take the lease of the run in `store`.

        Raises:
            RunConflict: another driver holds it, or was quicker.
        """
        lease = cls(store, owner, uuid.uuid4().hex, ttl_s, clock)
        view = read_lease(store)
        if reason := refusal(view, takeover):
            raise RunConflict(reason)
        try:
            lease._take(view)
        except (AlreadyExists, Changed) as error:
            winner = read_lease(store)
            raise RunConflict(f"{winner.owner if winner else 'another driver'} was quicker to take this run") from error
        return lease

    def is_due(self) -> bool:
        """Whether the next heartbeat should be sent."""
        return self.clock() - self._beaten_at >= min(HEARTBEAT_S, self.ttl_s / 3)

    def heartbeat(self, progress: Mapping[str, Any] | None = None) -> None:
        """Say that this driver lives, with a snapshot for `status` (kept from the last time if None).

        Raises:
            RunConflict: somebody took the run over; stop without writing anything more.
            StorageError: the store fails; the lease may still be ours, so try again.
        """
        self._write(RUNNING, progress)

    def release(self, state: str, progress: Mapping[str, Any] | None = None) -> None:
        """Write the state that the run ended in; does nothing if the lease is known to be lost."""
        if not self.lost:
            self._write(state, progress)

    def _take(self, view: LeaseView | None) -> None:
        body = self._body(RUNNING)
        if view is None:
            self._beaten(self.store.put_if_absent(layout.LEASE, body))
        else:
            self._beaten(self.store.put_if_match(layout.LEASE, body, view.etag))

    def _write(self, state: str, progress: Mapping[str, Any] | None) -> None:
        with self._lock:
            if progress is not None:
                self._progress = dict(progress)
            try:
                self._beaten(self.store.put_if_match(layout.LEASE, self._body(state), self.etag))
            except Changed:
                self._write_over_own(state)

    def _write_over_own(self, state: str) -> None:
        """A heartbeat that failed may have been written all the same: then what stands there is ours."""
        view = read_lease(self.store)
        if view is None or view.holder != self.holder:
            self.lost = True
            raise RunConflict(f"this run was taken over by {view.owner if view else 'nobody: its lease was deleted'}")
        self._beaten(self.store.put_if_match(layout.LEASE, self._body(state), view.etag))

    def _body(self, state: str) -> bytes:
        said = {
            "owner": asdict(self.owner),
            "state": state,
            "ttl_s": self.ttl_s,
            "holder": self.holder,
            "progress": self._progress,
            "written": uuid.uuid4().hex,
        }
        return json.dumps(said, indent=1).encode()

    def _beaten(self, stat: Stat) -> None:
        self.etag = stat.etag
        self._beaten_at = self.clock()
