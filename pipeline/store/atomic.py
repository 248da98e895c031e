"""Files that appear, change and go in one step, and are on disk when the call returns.

The lock is flock(2) on the file itself, and counts only if the name still leads to that file once it is held: so it
needs no lock files and dies with its holder. Reading takes no lock: an open file stays what it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator


@contextlib.contextmanager
def temporary_file(folder: str, data: bytes) -> Iterator[str]:
    """The path of a file with these bytes, on disk; gone afterwards under this name, whatever happens."""
    make_folder(folder)
    path = os.path.join(folder, f"{uuid.uuid4().hex}.tmp")
    try:
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def link(temporary: str, path: str) -> bool:
    """Give the temporary its name, and say whether the name was free."""
    folder = os.path.dirname(path)
    make_folder(folder)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    sync_folder(folder)
    return True


@contextlib.contextmanager
def locked(path: str) -> Iterator[os.stat_result | None]:
    """Hold the present version still: nobody else replaces or deletes it meanwhile. None if there is none."""
    while True:
        try:
            # A symbolic link is refused: flock would hold its target, but rename replaces the link.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held = os.fstat(descriptor)
            if _leads_to(path, held):
                yield held
                return
        finally:
            os.close(descriptor)


def _leads_to(path: str, held: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), held)
    except FileNotFoundError:
        return False


def replace(temporary: str, path: str, present: os.stat_result) -> os.stat_result:
    """Rename over the locked version. Time stamps tick every few milliseconds and inode numbers come back, so a version
    gets a later stamp than the one before it: no two of a chain share an etag."""
    behind_ns = present.st_mtime_ns - os.stat(temporary).st_mtime_ns
    # Further behind, somebody set the clock back, and a stamp of its own is different enough.
    if 0 <= behind_ns < 1_000_000_000:
        os.utime(temporary, ns=(present.st_atime_ns, present.st_mtime_ns + 1))
    stat = os.stat(temporary)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))
    return stat


def unlink(path: str) -> None:
    os.unlink(path)
    sync_folder(os.path.dirname(path))


def make_folder(path: str) -> None:
    """Like `os.makedirs`, but the new folders are on disk when it returns."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    sync_folder(parent)


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have nothing to sync for a folder and say so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
