"""Objects as files below a folder.

    create     write .tmp/<unique> · fsync · link(2) to the name · fsync the folder: one link wins
    replace    write .tmp/<unique> · fsync · lock the present file · rename over it · fsync the folder
    delete     lock the present file · unlink · fsync the folder

The file system must have hard links and locks (`check` tells); NFS has them, some FUSE and SMB mounts have not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from stat import S_ISDIR

from configs.errors import StorageError
from pipeline.store.atomic import link, locked, make_folder, replace, temporary_file, unlink
from pipeline.store.base import AlreadyExists, Changed, NotFound, Stat
from pipeline.store.key import checked_key
from pipeline.store.probe import probe

SCRATCH = ".tmp"
ABANDONED_S = 3600.0
"""A temporary lives for the seconds that one write takes; after an hour its writer is dead."""

NEXT_STEP = {
    errno.ENOSPC: "the disk is full; free some space and resume",
    errno.EDQUOT: "the disk quota is used up; free some space and resume",
    errno.EFBIG: "the file size limit is reached; raise it (ulimit -f) or write smaller shards",
    errno.EACCES: "no permission; check the owner and mode of the folder",
    errno.EPERM: "not permitted; check the owner and mode of the folder, and that the file system has hard links",
    errno.EROFS: "the file system is read-only; choose another sink.path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another sink.path",
    errno.EISDIR: "a folder of that name is in the way; remove it",
    errno.EXDEV: "the folder and its .tmp lie on different file systems; open the mounted folder itself",
    errno.ENOTSUP: "this file system lacks hard links or locks; use a local disk, NFS or s3://",
    errno.ENOSYS: "this file system lacks hard links or locks; use a local disk, NFS or s3://",
    errno.ENOLCK: "this file system gives no locks; mount it with locking, or use another",
    errno.ELOOP: "a symbolic link of that name is in the way; remove it",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


@dataclass(frozen=True, slots=True)
class LocalStore:
    """See the module's docstring. `root` is made absolute; it is created by the first write or by `check`."""

    root: str
    scratch: str = field(default="", repr=False)
    """Where temporaries are written; sub-folders share their parent's, so none of their names ever appears there."""

    def __post_init__(self) -> None:
        root = os.path.abspath(os.path.expanduser(self.root))
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "scratch", self.scratch or os.path.join(root, SCRATCH))

    @property
    def url(self) -> str:
        return self.root

    def put_if_absent(self, key: str, data: bytes) -> Stat:
        path = self._path(key)
        if os.path.lexists(path):
            raise AlreadyExists(f"{path} exists")
        with _told("write", path, len(data)), temporary_file(self.scratch, data) as temporary:
            stat = _stat(key, os.stat(temporary))
            if not link(temporary, path):
                raise AlreadyExists(f"{path} exists")
            return stat

    def put_if_match(self, key: str, data: bytes, etag: str) -> Stat:
        path = self._path(key)
        with (
            _told("replace", path, len(data)),
            temporary_file(self.scratch, data) as temporary,
            locked(path) as present,
        ):
            if present is None or _etag(present) != etag:
                raise Changed(f"{path} {'was changed' if present else 'is gone'}: it is no longer version {etag}")
            return _stat(key, replace(temporary, path, present))

    def put(self, key: str, data: bytes) -> Stat:
        path = self._path(key)
        with _told("write", path, len(data)), temporary_file(self.scratch, data) as temporary:
            while True:
                with locked(path) as present:
                    if present is not None:
                        return _stat(key, replace(temporary, path, present))
                stat = os.stat(temporary)
                if link(temporary, path):
                    return _stat(key, stat)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _found("read", path), open(path, "rb") as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        path = self._path(key)
        with _found("read", path), open(path, "rb") as file:
            if etag is not None and _etag(os.fstat(file.fileno())) != etag:
                raise Changed(f"{path} was replaced while it was read; read it again")
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> Stat:
        path = self._path(key)
        with _found("look at", path):
            stat = os.stat(path)
            if S_ISDIR(stat.st_mode):
                raise NotFound(f"no object {path}, it is a folder")
            return _stat(key, stat)

    def list(self, prefix: str) -> Iterator[Stat]:
        folder, _, _ = prefix.rpartition("/")
        with _told("list", os.path.join(self.root, prefix)):
            yield from _walk(self.root, f"{checked_key(folder)}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(NotFound), _found("delete", path), locked(path) as present:
            if present is not None:
                unlink(path)

    def now(self) -> float:
        """By the file system's clock, which on NFS is the server's. Who cannot write gets this machine's."""
        try:
            with temporary_file(self.scratch, b"") as temporary:
                return os.stat(temporary).st_mtime
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
                return time.time()
            raise _translated(error, "write", self.scratch) from error

    def children(self) -> Sequence[str]:
        with _told("list", self.root):
            try:
                with os.scandir(self.root) as entries:
                    names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
            except FileNotFoundError:
                return []
            return sorted(name for name in names if next(_walk(self.root, f"{name}/", f"{name}/"), None))

    def child(self, name: str) -> LocalStore:
        return LocalStore(self._path(name), self.scratch)

    def check(self) -> None:
        """Also removes what dead writers left in `.tmp`."""
        with _told("create", self.root):
            make_folder(self.scratch)
            _remove_abandoned(self.scratch, self.now())
        probe(self)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, checked_key(key))


@contextlib.contextmanager
def _told(action: str, path: str, size: int | None = None) -> Iterator[None]:
    """Translate what the operating system says into StorageError."""
    try:
        yield
    except OSError as error:
        raise _translated(error, action, path, size) from error


@contextlib.contextmanager
def _found(action: str, path: str) -> Iterator[None]:
    """The same, where a missing object is NotFound."""
    with _told(action, path):
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"no object {path}") from error


def _translated(error: OSError, action: str, path: str, size: int | None = None) -> StorageError:
    volume = "" if size is None else f" ({size} bytes)"
    next_step = NEXT_STEP.get(error.errno or 0, "check the disk and its mount")
    return StorageError(f"cannot {action} {path}{volume}: {error.strerror or error}: {next_step}")


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _stat(key: str, stat: os.stat_result) -> Stat:
    return Stat(key, stat.st_size, _etag(stat), stat.st_mtime)


def _remove_abandoned(scratch: str, now: float) -> None:
    with os.scandir(scratch) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat().st_mtime > ABANDONED_S:
                    os.unlink(entry.path)


def _walk(root: str, folder: str, prefix: str) -> Iterator[Stat]:
    """Files below `root/folder` whose key starts with `prefix`, in key order; hidden names are skipped."""
    try:
        entries = list(os.scandir(os.path.join(root, folder)))
    except (FileNotFoundError, NotADirectoryError):
        return
    # A folder sorts as its keys do: `a-b` comes before `a/b`, though `a` comes before `a-b`.
    keys = {f"{folder}{entry.name}{'/' if entry.is_dir() else ''}": entry for entry in entries}
    for key in sorted(keys):
        if keys[key].name.startswith(".") or not (key.startswith(prefix) or prefix.startswith(key)):
            continue
        if key.endswith("/"):
            yield from _walk(root, key, prefix)
        elif key.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):
                yield _stat(key, keys[key].stat())
