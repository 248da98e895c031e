"""What is particular to the local disk: temporaries, full disks, poor file systems, several processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs.errors import StorageError
from pipeline.store import atomic
from pipeline.store.base import AlreadyExists, Changed
from pipeline.store.local import ABANDONED_S, LocalStore


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fail_with(number: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


class TestFiles:
    def test_only_whole_objects_lie_outside_the_scratch_folder(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path)).child("run")
        store.put_if_absent("data/a.parquet", b"x")
        store.put("_ledger/b.json", b"y")
        store.put("_ledger/b.json", b"z")
        assert files_below(tmp_path) == ["run/_ledger/b.json", "run/data/a.parquet"]
        assert os.listdir(tmp_path / ".tmp") == []

    def test_what_is_synced_in_which_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []
        sync = os.fsync

        def watch(descriptor: int) -> None:
            seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", watch)
        LocalStore(str(tmp_path)).put_if_absent("data/a.parquet", b"x")
        # Each new folder is synced in its parent; the object's own folder last, so that the name is on disk too.
        temporary = seen[1]
        assert seen == [str(tmp_path), temporary, str(tmp_path), str(tmp_path / "data")]
        assert os.path.dirname(temporary) == str(tmp_path / ".tmp")
        assert temporary.endswith(".tmp")

    def test_the_owner_may_share_them(self, tmp_path: Path) -> None:
        """Not the 0600 of private temporaries: others may read the dataset as the umask allows."""
        previous = os.umask(0o022)
        try:
            LocalStore(str(tmp_path)).put("a", b"x")
        finally:
            os.umask(previous)
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644

    def test_hidden_files_are_no_objects(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path))
        store.put("data/a", b"x")
        (tmp_path / "data" / ".DS_Store").write_bytes(b"")
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / "b").write_bytes(b"")
        assert [stat.key for stat in store.list("")] == ["data/a"]

    def test_abandoned_temporaries_go_and_those_at_work_stay(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path))
        store.check()
        old, fresh = tmp_path / ".tmp" / "dead.tmp", tmp_path / ".tmp" / "alive.tmp"
        old.write_bytes(b"x")
        fresh.write_bytes(b"x")
        long_ago = time.time() - ABANDONED_S - 60
        os.utime(old, (long_ago, long_ago))
        store.check()
        assert os.listdir(tmp_path / ".tmp") == ["alive.tmp"]

    def test_paths_are_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert LocalStore("output/").url == str(tmp_path / "output")
        assert LocalStore("~/runs").url == str(tmp_path / "home" / "runs")


class TestVersions:
    def test_a_version_is_later_than_the_one_before_it(self, tmp_path: Path) -> None:
        """As on a file system whose clock has not ticked since: then the inode alone would tell versions apart, and
        inodes come back."""
        store = LocalStore(str(tmp_path))
        first = store.put_if_absent("a", b"1")
        ahead_ns = time.time_ns() + 500_000_000
        os.utime(tmp_path / "a", ns=(ahead_ns, ahead_ns))
        second = store.put_if_match("a", b"2", store.head("a").etag)
        assert os.stat(tmp_path / "a").st_mtime_ns == ahead_ns + 1
        third = store.put("a", b"3")
        assert os.stat(tmp_path / "a").st_mtime_ns == ahead_ns + 2
        assert len({first.etag, second.etag, third.etag}) == 3

    def test_a_clock_set_back_is_not_dragged_along(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path))
        store.put("a", b"1")
        os.utime(tmp_path / "a", (time.time() + 3600,) * 2)
        assert store.put("a", b"2").modified < time.time() + 60

    def test_a_waiting_writer_notices_that_its_file_was_replaced(self, tmp_path: Path) -> None:
        """Whoever holds the lock on a file that lost its name holds nothing."""
        store = LocalStore(str(tmp_path))
        etag = store.put_if_absent("a", b"1").etag
        with ThreadPoolExecutor(1) as pool:
            with atomic.locked(str(tmp_path / "a")) as present:
                waiting = pool.submit(store.put_if_match, "a", b"3", etag)
                _until_somebody_waits_for_a_lock()
                assert present is not None
                with atomic.temporary_file(store.scratch, b"2") as temporary:
                    atomic.replace(temporary, str(tmp_path / "a"), present)
            with pytest.raises(Changed):
                waiting.result()
        assert store.get("a") == b"2"

    def test_a_symbolic_link_is_not_written_through(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path / "run"))
        (tmp_path / "elsewhere").write_bytes(b"precious")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a").symlink_to(tmp_path / "elsewhere")
        assert store.get("a") == b"precious"
        with pytest.raises(AlreadyExists):
            store.put_if_absent("a", b"x")
        with pytest.raises(StorageError, match="a symbolic link of that name is in the way"):
            store.put("a", b"x")
        assert (tmp_path / "elsewhere").read_bytes() == b"precious"


class TestTrouble:
    def test_a_full_disk_leaves_nothing_half_visible(self, tmp_path: Path) -> None:
        """A real one: a file system of one megabyte."""
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True)
        if mounted.returncode:
            pytest.skip("mounting a small file system needs root")
        try:
            store = LocalStore(str(disk))
            store.put_if_absent("data/a.parquet", b"x" * 500_000)
            for write in (store.put_if_absent, store.put):
                with pytest.raises(StorageError, match=r"data/b.parquet \(900000 bytes\).*the disk is full"):
                    write("data/b.parquet", b"y" * 900_000)
            assert files_below(disk) == ["data/a.parquet"]
            store.put_if_absent("data/b.parquet", b"y" * 300_000)
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_limit_met_half_way_leaves_nothing(self, tmp_path: Path) -> None:
        code = (
            "import resource, signal, sys; from pipeline.store.local import LocalStore\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "try: LocalStore(sys.argv[1]).put_if_absent('data/a.parquet', b'x' * 300_000)\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("StorageError cannot write")
        assert "(300000 bytes)" in done.stdout
        assert files_below(tmp_path) == []

    @pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota is used up")])
    def test_a_write_that_reaches_the_disk_too_late(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
    ) -> None:
        """Network file systems tell only at fsync that there was no room."""
        store = LocalStore(str(tmp_path))
        store.check()
        monkeypatch.setattr(os, "fsync", fail_with(number))
        with pytest.raises(StorageError, match=hint):
            store.put_if_absent("a", b"x")
        assert files_below(tmp_path) == []

    @pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
    def test_a_file_system_without_hard_links_is_told_at_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        monkeypatch.setattr(os, "link", fail_with(number))
        with pytest.raises(StorageError, match="hard links"):
            LocalStore(str(tmp_path)).check()
        assert files_below(tmp_path) == []

    def test_a_file_system_without_locks_is_told_at_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fcntl.flock", fail_with(errno.ENOLCK))
        with pytest.raises(StorageError, match="gives no locks"):
            LocalStore(str(tmp_path)).check()

    def test_a_folder_whose_sync_means_nothing_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sync = os.fsync

        def files_only(descriptor: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                raise OSError(errno.EINVAL, "Invalid argument")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", files_only)
        LocalStore(str(tmp_path)).check()

    def test_a_path_through_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(StorageError, match="a part of the path is a file"):
            LocalStore(str(tmp_path / "file" / "run")).check()
        with pytest.raises(StorageError, match="a part of the path is a file"):
            LocalStore(str(tmp_path)).put_if_absent("file/a", b"x")
        store = LocalStore(str(tmp_path))
        store.put("folder/a", b"x")
        with pytest.raises(StorageError, match="a folder of that name"):
            store.put("folder", b"x")

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "mkdir", fail_with(errno.EACCES))
        with pytest.raises(StorageError, match="check the owner and mode"):
            LocalStore(str(tmp_path / "run")).check()

    @pytest.mark.parametrize("cause", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
    def test_who_cannot_write_can_still_tell_ages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: int
    ) -> None:
        store = LocalStore(str(tmp_path))
        store.put("a", b"x")
        monkeypatch.setattr(atomic, "make_folder", fail_with(cause))
        assert abs(store.now() - store.head("a").modified) < 60


class TestProcesses:
    def test_racing_processes_have_one_winner(self, tmp_path: Path) -> None:
        store = LocalStore(str(tmp_path))
        racers = [_in_another_process(store, "put_if_absent", f"{key}") for key in range(3) for _ in range(3)]
        store.put("start", b"")
        answers = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
        assert sorted(answers) == [["AlreadyExists"]] * 6 + [["Stat"]] * 3

    def test_counting_together_loses_no_step(self, tmp_path: Path) -> None:
        """Four processes add to one number by compare-and-swap; a lost update would be missing from the sum."""
        store = LocalStore(str(tmp_path))
        store.put_if_absent("count", b"0")
        workers = [_in_another_process(store, "count", "count") for _ in range(4)]
        time.sleep(0.5)
        store.put("start", b"")
        for worker in workers:
            assert worker.communicate(timeout=120)[0]
        assert store.get("count") == b"100"


def _until_somebody_waits_for_a_lock() -> None:
    """Linux lists a lock that is waited for as `-> FLOCK` with the process."""
    deadline = time.monotonic() + 30
    while not any("->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").read_text().splitlines()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _in_another_process(store: LocalStore, action: str, key: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, store.root, action, key]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def _act(store: LocalStore, action: str, key: str) -> list[str]:
    while not os.path.exists(os.path.join(store.root, "start")):
        time.sleep(0.001)
    if action == "count":
        for _ in range(25):
            _add_one(store, key)
        return ["counted"]
    try:
        return [type(store.put_if_absent(key, b"x")).__name__]
    except AlreadyExists as error:
        return [type(error).__name__]


def _add_one(store: LocalStore, key: str) -> None:
    while True:
        etag = store.head(key).etag
        try:
            store.put_if_match(key, b"%d" % (int(store.get(key)) + 1), etag)
            return
        except Changed:
            continue


if __name__ == "__main__":
    print(json.dumps(_act(LocalStore(sys.argv[1]), *sys.argv[2:])))
