"""One driver at a time: on disk, on a real S3 server, and when answers get lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_server import S3Bucket

from configs.errors import RunConflict, StorageError
from pipeline.layout import LEASE
from pipeline.lease import (
    RUNNING,
    Lease,
    LeaseOwner,
    LeaseView,
    is_gone,
    read_lease,
    refusal,
    start_ticks,
    this_machine,
)
from pipeline.store.base import Stat, Store
from pipeline.store.faulty import FaultyStore, StoreFault
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store

ANNA = LeaseOwner("anna-host", 11, 1, 1_790_000_000.0)
BEN = LeaseOwner("ben-host", 22, 2, 1_790_000_100.0)


@dataclass
class HandClock:
    """A clock that is turned by hand."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def disk(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def age(store: LocalStore, seconds: float) -> None:
    """Make the last heartbeat older, by the clock of the file system. The etag changes as well."""
    path = os.path.join(store.root, LEASE)
    stat = os.stat(path)
    os.utime(path, (stat.st_atime, stat.st_mtime - seconds))


def view(state: str = RUNNING, age_s: float = 0.0, ttl_s: float = 60.0) -> LeaseView:
    return LeaseView(ANNA, state, age_s, ttl_s, {}, "h", "e")


class TestDecision:
    @given(age_s=st.floats(0, 1e6), takeover=st.booleans())
    def test_a_driver_that_is_certainly_gone_gives_way_at_once(self, age_s: float, takeover: bool) -> None:
        assert refusal(replace(view(RUNNING, age_s), gone=True), takeover) is None

    def test_only_a_process_of_this_machine_is_certain(self) -> None:
        ticks = start_ticks(os.getpid())
        assert ticks is not None
        here = replace(ANNA, machine=this_machine(), pid=os.getpid(), start_ticks=ticks)
        assert not is_gone(here)
        assert is_gone(replace(here, start_ticks=ticks - 1))  # the pid is another process's now
        assert not is_gone(replace(here, start_ticks=None))  # written by a version that did not say
        child = subprocess.Popen([sys.executable, "-c", ""])
        child.wait()
        assert is_gone(replace(here, pid=child.pid))
        assert not is_gone(replace(here, pid=child.pid, machine="another"))
        assert not is_gone(replace(here, pid=child.pid, machine=""))

    @given(started=st.floats(0, 1e11))
    def test_no_step_of_the_clock_makes_a_live_driver_gone(self, started: float) -> None:
        pid = os.getpid()
        assert not is_gone(LeaseOwner("here", pid, 1, started, this_machine(), start_ticks(pid)))

    def test_a_driver_that_nobody_has_waited_for_is_gone(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        alive = LeaseOwner("here", child.pid, 1, 0.0, this_machine(), start_ticks(child.pid))
        try:
            assert child.stdout is not None
            child.stdout.read()  # until it ends
            deadline = time.monotonic() + 10
            while not is_gone(alive):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            child.communicate()

    def test_a_name_cannot_hide_when_a_process_began(self, tmp_path: Path) -> None:
        sleep = tmp_path / "a) Z 1 ("
        shutil.copy("/bin/sleep", sleep)
        with subprocess.Popen([sleep, "60"]) as process:
            boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            ticks = start_ticks(process.pid)
            process.kill()
        assert ticks is not None
        assert abs(ticks / os.sysconf("SC_CLK_TCK") - boot_s) < 10

    @given(age_s=st.floats(0, 1e6), takeover=st.booleans(), state=st.sampled_from([RUNNING, "completed", "failed"]))
    def test_only_a_silent_or_ended_driver_gives_way(self, age_s: float, takeover: bool, state: str) -> None:
        reason = refusal(view(state, age_s), takeover)
        free = state != RUNNING or (age_s > 60.0 and takeover)
        assert (reason is None) == free
        if reason:
            assert "anna-host" in reason
            assert "pid 11" in reason
            assert f"{age_s:.0f} s ago" in reason
            assert ("--takeover" in reason) == (age_s > 60.0)

    def test_a_run_that_nobody_drove_is_free(self) -> None:
        assert refusal(None, takeover=False) is None


class TestAcquire:
    def test_it_says_who_drives(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA)
        seen = read_lease(disk)
        assert seen is not None
        assert (seen.owner, seen.state, seen.progress, seen.alive) == (ANNA, RUNNING, {}, True)
        assert 0 <= seen.heartbeat_age_s < 30

    def test_nobody_ever_drove(self, disk: LocalStore) -> None:
        assert read_lease(disk) is None
        assert not os.path.exists(os.path.join(disk.root, ".tmp"))

    def test_a_second_driver_is_refused_even_with_takeover(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA)
        for takeover in (False, True):
            with pytest.raises(RunConflict, match=r"attempt 1 \(host anna-host, pid 11\), heartbeat \d+ s ago"):
                Lease.acquire(disk, BEN, takeover=takeover)

    def test_a_silent_driver_is_replaced_only_when_asked(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA)
        age(disk, 120)
        with pytest.raises(RunConflict, match=r"heartbeat 12\d s ago.*add --takeover"):
            Lease.acquire(disk, BEN)
        Lease.acquire(disk, BEN, takeover=True)
        seen = read_lease(disk)
        assert seen is not None
        assert seen.owner == BEN

    def test_a_run_that_ended_is_free(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA).release("completed", {"done": 50})
        seen = read_lease(disk)
        assert seen is not None
        assert (seen.state, seen.progress, seen.expired, seen.alive) == ("completed", {"done": 50}, False, False)
        Lease.acquire(disk, BEN)

    def test_eight_drivers_at_once_have_one_winner(self, disk: LocalStore) -> None:
        start = threading.Barrier(8)

        def drive(number: int) -> bool:
            start.wait()
            try:
                Lease.acquire(disk, replace(ANNA, pid=number))
            except RunConflict:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(drive, range(8))) == 1

    def test_two_takeovers_at_once_have_one_winner(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA)
        age(disk, 120)
        start = threading.Barrier(4)

        def take(number: int) -> bool:
            start.wait()
            try:
                Lease.acquire(disk, replace(BEN, pid=number), takeover=True)
            except RunConflict:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(take, range(4))) == 1

    def test_another_ttl_is_the_holders_promise(self, disk: LocalStore) -> None:
        Lease.acquire(disk, ANNA, ttl_s=5)
        age(disk, 10)
        Lease.acquire(disk, BEN, takeover=True)

    def test_what_is_no_lease_is_told(self, disk: LocalStore) -> None:
        disk.put(LEASE, b"{}")
        with pytest.raises(StorageError, match=r"_lease.json is not a lease .*delete it"):
            read_lease(disk)


class TestHeartbeat:
    def test_it_carries_the_progress(self, disk: LocalStore) -> None:
        lease = Lease.acquire(disk, ANNA)
        age(disk, 40)
        lease.etag = disk.head(LEASE).etag
        lease.heartbeat({"done": 31, "total": 50, "line": "31/50"})
        seen = read_lease(disk)
        assert seen is not None
        assert seen.progress == {"done": 31, "total": 50, "line": "31/50"}
        assert seen.heartbeat_age_s < 30
        lease.heartbeat()
        assert read_lease(disk).progress == seen.progress  # type: ignore[union-attr]

    def test_a_holder_learns_that_it_was_replaced(self, disk: LocalStore) -> None:
        anna = Lease.acquire(disk, ANNA)
        age(disk, 120)
        ben = Lease.acquire(disk, BEN, takeover=True)
        with pytest.raises(RunConflict, match=r"taken over by attempt 2 .*ben-host"):
            anna.heartbeat({"done": 1})
        anna.release("interrupted")
        seen = read_lease(disk)
        assert seen is not None
        assert (seen.owner, seen.state) == (BEN, RUNNING)
        ben.heartbeat()

    def test_or_at_the_latest_when_it_ends(self, disk: LocalStore) -> None:
        anna = Lease.acquire(disk, ANNA)
        age(disk, 120)
        Lease.acquire(disk, BEN, takeover=True)
        with pytest.raises(RunConflict):
            anna.release("completed")
        assert read_lease(disk).owner == BEN  # type: ignore[union-attr]

    def test_a_deleted_lease_is_not_written_again(self, disk: LocalStore) -> None:
        lease = Lease.acquire(disk, ANNA)
        disk.delete(LEASE)
        with pytest.raises(RunConflict, match="its lease was deleted"):
            lease.heartbeat()
        assert read_lease(disk) is None

    def test_a_heartbeat_whose_answer_was_lost_is_recognized(self, disk: LocalStore) -> None:
        store = FaultyStore(disk, (StoreFault("lost_answer", "put_if_match"),))
        lease = Lease.acquire(store, ANNA)
        with pytest.raises(StorageError):
            lease.heartbeat({"done": 1})
        lease.heartbeat({"done": 2})
        assert read_lease(disk).progress == {"done": 2}  # type: ignore[union-attr]

    def test_a_store_that_is_down_does_not_lose_the_lease(self, disk: LocalStore) -> None:
        lease = Lease.acquire(FaultyStore(disk, (StoreFault("unavailable", "put_if_match", times=3),)), ANNA)
        for _ in range(3):
            with pytest.raises(StorageError):
                lease.heartbeat()
        lease.heartbeat()

    def test_it_is_due_every_ten_seconds(self, disk: LocalStore) -> None:
        clock = HandClock()
        lease = Lease.acquire(disk, ANNA, clock=clock)
        due = []
        for clock.seconds in (0.0, 9.9, 10.0, 15.0, 19.9, 20.0):
            due.append(lease.is_due())
            if due[-1]:
                lease.heartbeat()
        assert due == [False, False, True, False, False, True]

    def test_two_threads_do_not_trip_over_each_other(self, disk: LocalStore) -> None:
        lease = Lease.acquire(disk, ANNA)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: lease.heartbeat({"done": number}), range(20)))


class TestS3:
    def test_a_life_on_a_real_server(self, s3_bucket: S3Bucket) -> None:
        store: Store = open_store(s3_bucket.url, s3_bucket.storage)
        lease = Lease.acquire(store, ANNA, ttl_s=2)
        lease.heartbeat({"done": 1})
        with pytest.raises(RunConflict, match="anna-host"):
            Lease.acquire(store, BEN, takeover=True)
        deadline = time.monotonic() + 30
        while not read_lease(store).expired:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.3)
        ben = Lease.acquire(store, BEN, takeover=True)
        with pytest.raises(RunConflict, match="ben-host"):
            lease.heartbeat()
        ben.release("completed")
        assert read_lease(store).state == "completed"  # type: ignore[union-attr]


@dataclass
class SkewedStore:
    """A store whose clock is far from this machine's, as that of a server may be."""

    inner: LocalStore
    ahead_s: float

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def head(self, key: str) -> Stat:
        stat = self.inner.head(key)
        return replace(stat, modified=stat.modified + self.ahead_s)

    def now(self) -> float:
        return self.inner.now() + self.ahead_s


@given(ahead_s=st.floats(-1e6, 1e6))
def test_this_machines_clock_plays_no_part(tmp_path_factory: pytest.TempPathFactory, ahead_s: float) -> None:
    store = SkewedStore(LocalStore(str(tmp_path_factory.mktemp("run"))), ahead_s)
    Lease.acquire(store, ANNA)  # type: ignore[arg-type]
    seen = read_lease(store)  # type: ignore[arg-type]
    assert seen is not None
    assert seen.heartbeat_age_s < 30
    age(store.inner, 100)
    assert 100 <= read_lease(store).heartbeat_age_s < 130  # type: ignore[arg-type, union-attr]
