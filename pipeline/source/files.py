"""The input's files: found by path, folder or glob, on disk or in S3, and opened for reading.

Within folders and globs, files and folders whose name begins with `.` or `_` are passed over: markers such as
`_SUCCESS`, half-written files, the bookkeeping of other tools.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from configs.errors import SourceError
from configs.job import Storage
from pipeline.ranged_file import RangedFile
from pipeline.store.base import NotFound, Stat, Store
from pipeline.store.open import open_answering

HASHED_BYTES = 16 << 20
"""Up to this size a local file is identified by its content, beyond it by size and time of change."""
READ_BYTES = 8 << 20
"""One request to S3."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

_S3_URL = re.compile(r"^s3[an]?://([^/]+)/?(.*)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file."""

    path: str
    """Absolute, or s3://bucket/key."""
    size: int
    """Bytes."""
    etag: str
    """Changes with the content."""

    @property
    def ending(self) -> str:
        """Of the name, without a compression's: `.jsonl` for `a.jsonl.gz`."""
        name = self.path
        if self.compression:
            name = os.path.splitext(name)[0]
        return os.path.splitext(name)[1].lower()

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(os.path.splitext(self.path)[1].lower())

    def identity(self) -> dict[str, object]:
        """What a fingerprint keeps of the file."""
        return {"path": self.path, "size": self.size, "etag": self.etag}


def is_s3(path: str) -> bool:
    return _S3_URL.match(path) is not None


def without_file_scheme(path: str) -> str:
    """The path of a `file:` URL; S3 URLs and paths stay as they are.

    Raises:
        SourceError: it is a URL of another kind, or of another host's file.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or is_s3(path):
        return path
    host, _, below = rest.partition("/")
    if scheme.lower() != "file" or host not in ("", "localhost"):
        raise SourceError(f"source.path {path}: {scheme}:// is not read; use s3://bucket/key, file:///path or a path")
    return f"/{unquote(below)}"


def is_glob(path: str) -> bool:
    return _MAGIC.search(path) is not None


def find_files(pattern: str, base_dir: Path, storage: Storage) -> list[SourceFile]:
    """The file, all files below the folder, or those that match the glob (`**` crosses folders), in path order.

    Raises:
        SourceError: nothing is there, or it cannot be looked at.
        StorageError: S3 refuses.
    """
    found = _find_s3(pattern, storage) if is_s3(pattern) else _find_local(pattern, base_dir)
    if not found:
        raise SourceError(f"source.path {pattern}: no such file, folder or match")
    return found


def _find_local(pattern: str, base_dir: Path) -> list[SourceFile]:
    absolute = os.path.abspath(base_dir / os.path.expanduser(pattern))
    if os.path.isfile(absolute):
        return [_local_file(absolute)]
    if os.path.exists(absolute) and not os.path.isdir(absolute):
        raise SourceError(f"source.path {pattern} is no file but a pipe or a device; write its rows to a file first")
    if os.path.isdir(absolute):
        root, pattern = absolute, os.path.join(glob.escape(absolute), "**")
    else:
        root, pattern = _fixed_part(absolute), absolute
    paths = sorted(path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path))
    # A link that leads back up would give each file again and again, as a link to a file gives it twice.
    once = {os.path.realpath(path): path for path in reversed(paths) if not _passed_over(path, root)}
    return [_local_file(path) for path in sorted(once.values())]


def _fixed_part(pattern: str) -> str:
    """The folders before the first `*`, `?` or `[`."""
    magic = _MAGIC.search(pattern)
    return pattern[: magic.start()].rpartition("/")[0] if magic else pattern


def _passed_over(path: str, root: str) -> bool:
    """Whether the file or a folder between it and `root` is hidden or somebody's bookkeeping."""
    return any(part.startswith((".", "_")) for part in path.removeprefix(root).split("/"))


def _local_file(path: str) -> SourceFile:
    try:
        stat = os.stat(path)
        etag = _content_hash(path) if stat.st_size <= HASHED_BYTES else f"mtime_ns:{stat.st_mtime_ns}"
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None
    return SourceFile(path, stat.st_size, etag)


def _content_hash(path: str) -> str:
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _find_s3(url: str, storage: Storage) -> list[SourceFile]:
    store, key = _bucket(url, storage)
    if not _MAGIC.search(key):
        if key and not key.endswith("/"):
            try:
                return [_s3_file(store, store.head(key))]
            except NotFound:
                pass
        folder = key.rstrip("/") + "/" if key else ""
        return [_s3_file(store, stat) for stat in store.list(folder) if not _passed_over(stat.key, folder)]
    root, matches = _fixed_part(key), _glob_pattern(key)
    found = (stat for stat in store.list(f"{root}/" if root else "") if matches.match(stat.key))
    return [_s3_file(store, stat) for stat in found if not _passed_over(stat.key, root)]


def exists(path: str, base_dir: Path, storage: Storage) -> bool:
    """Whether there is a file of this very path."""
    return read_small(path, base_dir, storage) is not None


def read_small(path: str, base_dir: Path, storage: Storage) -> bytes | None:
    """The file of this very path, or None if there is none.

    Raises:
        StorageError: S3 refuses.
    """
    if not is_s3(path):
        file = base_dir / Path(path).expanduser()
        return file.read_bytes() if file.is_file() else None
    store, key = _bucket(path, storage)
    try:
        return store.get(key)
    except NotFound:
        return None


def _bucket(url: str, storage: Storage) -> tuple[Store, str]:
    found = _S3_URL.match(url)
    assert found is not None
    return _answering(f"s3://{found[1]}", storage), found[2]


@lru_cache(maxsize=64)
def _answering(bucket: str, storage: Storage) -> Store:
    """The bucket's store; asked only once whether it answers, since a source may have many files."""
    return open_answering(bucket, storage)


def _s3_file(store: Store, stat: Stat) -> SourceFile:
    return SourceFile(f"{store.url}/{stat.key}", stat.size, stat.etag)


def _glob_pattern(key: str) -> re.Pattern[str]:
    """`*` and `?` stay within a folder, `**/` is any number of folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", key)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    translated = (
        special.get(part) or (fnmatch.translate(part) if part.startswith("[") else re.escape(part)) for part in parts
    )
    return re.compile("".join(part.removeprefix("(?s:").removesuffix(")\\Z") for part in translated) + r"\Z")


def open_file(file: SourceFile, storage: Storage) -> pa.NativeFile:
    """The file's bytes, decompressed if its name says so. Parquet needs to seek and has its own compression.

    Raises:
        SourceError: it is gone or may not be read.
        StorageError: S3 refuses.
    """
    raw = _open_s3(file, storage) if is_s3(file.path) else _open_local(file)
    return pa.CompressedInputStream(raw, file.compression) if file.compression else raw


def _open_local(file: SourceFile) -> pa.NativeFile:
    try:
        return pa.OSFile(file.path, "rb")
    except OSError as error:
        raise SourceError(f"cannot read {file.path}: {error}") from None


def _open_s3(file: SourceFile, storage: Storage) -> pa.NativeFile:
    store, key = _bucket(file.path, storage)
    try:
        ranged = RangedFile(store, key)
    except NotFound:
        raise SourceError(f"{file.path} is gone since it was listed") from None
    return pa.PythonFile(io.BufferedReader(ranged, READ_BYTES), "r")
