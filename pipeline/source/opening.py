"""A job's source, opened: its files in a fixed order, its one format, its rows as chunks.

    source.path -> files -> format -> chunks of rows -> at most `limit` rows

The same source always gives the same chunks in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from configs.errors import SourceError
from configs.job import Job, Source, Storage
from pipeline.source.chunk import Chunk
from pipeline.source.column_map import ColumnMap
from pipeline.source.csv_file import read_csv
from pipeline.source.earlier_run import PREFIX, open_earlier_run
from pipeline.source.files import SourceFile, find_files, is_glob, open_file, without_file_scheme
from pipeline.source.hf_dataset import STATE, hf_files, read_arrow
from pipeline.source.jsonl import BOM, read_lines
from pipeline.source.openai_batch import is_batch_line
from pipeline.source.parquet import read_parquet
from pipeline.store.base import Changed

Format = Literal["jsonl", "parquet", "csv", "openai_batch", "hf_dataset"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
}
PACKED = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x1f\x8b": "compressed by gzip; let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; let its name end in .zst",
    b"PAR1": "a Parquet file; let its name end in .parquet, or set source.format: parquet",
}
"""How files begin that are no text, whatever their names say."""
MIN_CHUNK_BYTES = 256 << 10
MAX_CHUNK_BYTES = 8 << 20
TARGET_CHUNKS = 4000
"""A large input gets larger chunks rather than more of them: each becomes a file of the spill."""


@dataclass(frozen=True)
class OpenSource:
    """The rows of a job. `columns` says which of their columns plays which part."""

    files: tuple[SourceFile, ...]
    format: Format
    columns: ColumnMap
    storage: Storage
    limit: int | None = None
    warnings: tuple[str, ...] = ()
    read: tuple[str, ...] | None = None
    """Of Parquet files, the columns to read; None for all."""

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def chunks(self) -> Iterator[Chunk]:
        """All rows, in file order.

        Raises:
            SourceError: a file that cannot be read, or is not of the source's format.
        """
        left = self.limit
        ordinal = 0
        for number, file in enumerate(self.files):
            for chunk in self._file_chunks(number, file, ordinal):
                if left is not None and chunk.num_rows >= left:
                    yield chunk.head(left)
                    return
                yield chunk
                ordinal += chunk.num_rows
                left = None if left is None else left - chunk.num_rows

    def _file_chunks(self, number: int, file: SourceFile, ordinal: int) -> Iterator[Chunk]:
        size = min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, self.num_bytes // TARGET_CHUNKS))
        with open_file(file, self.storage) as stream:
            try:
                yield from self._read(stream, number, file, ordinal, size)
            except Changed:
                raise SourceError(f"{file.path} changed while it was read; plan again when it is complete") from None
            except (OSError, pa.ArrowException) as error:
                other = f", or rename it if it is not compressed by {file.compression}" if file.compression else ""
                raise SourceError(f"{file.path} cannot be read to its end: {error}; copy it again{other}") from None

    def _read(self, stream: pa.NativeFile, number: int, file: SourceFile, ordinal: int, size: int) -> Iterator[Chunk]:
        if self.format == "parquet":
            return read_parquet(stream, number, file.path, ordinal, size, self.read)
        if self.format == "hf_dataset":
            return read_arrow(stream, number, file.path, ordinal, size)
        if not file.compression:
            _refuse_packed(stream, file.path)
        if self.format == "csv":
            delimiter = "\t" if file.ending == ".tsv" else ","
            return read_csv(stream, number, file.path, ordinal, size, delimiter)
        return read_lines(stream, number, file.path, ordinal, size)


def _refuse_packed(stream: pa.NativeFile, path: str) -> None:
    """Without this, every row of such a file would be told as broken text."""
    head = stream.read(4)
    stream.seek(0)
    for magic, what in PACKED.items():
        if head.startswith(magic):
            raise SourceError(f"{path} is {what}")


def open_source(job: Job, base_dir: Path) -> OpenSource:
    """Find the source's files and settle its format; reads no more than the first line of one of them.

    Raises:
        SourceError: nothing there, or files of several formats.
        StorageError: S3 refuses.
    """
    source = job.source
    patterns = [source.path] if isinstance(source.path, str) else list(source.path)
    if any(pattern.startswith(PREFIX) for pattern in patterns):
        return _open_run(job, patterns, base_dir)
    patterns = [without_file_scheme(pattern) for pattern in patterns]
    columns = ColumnMap.of(source.columns, source.rename)
    datasets = _hf_files(job, patterns, base_dir)
    if datasets:
        return OpenSource(datasets, "hf_dataset", columns, job.storage, source.limit)
    found = [file for pattern in patterns for file in find_files(pattern, base_dir, job.storage)]
    files, ignored = _of_one_format(source, list(dict.fromkeys(found)))
    format = _format(source, files, job.storage)
    warnings = (f"{len(ignored)} files with another ending are not read, {ignored[0].path} first",) if ignored else ()
    return OpenSource(tuple(files), format, columns, job.storage, source.limit, warnings)


def _open_run(job: Job, patterns: Sequence[str], base_dir: Path) -> OpenSource:
    if len(patterns) > 1:
        raise SourceError(f"source.path: {PREFIX}... stands alone; it cannot be listed with other paths")
    run = open_earlier_run(patterns[0].removeprefix(PREFIX), job, base_dir)
    return OpenSource(run.files, "parquet", run.columns, job.storage, job.source.limit, run.warnings, run.read)


def _hf_files(job: Job, patterns: Sequence[str], base_dir: Path) -> tuple[SourceFile, ...]:
    """The files of saved datasets; none if the paths are something else."""
    if job.source.format not in ("auto", "hf_dataset"):
        return ()
    found = {
        # An identity that may read a file and nothing else must not be refused for a look beside it.
        pattern: None if is_glob(pattern) or _is_known(pattern) else hf_files(pattern, base_dir, job.storage)
        for pattern in patterns
    }
    other = [pattern for pattern, files in found.items() if files is None]
    if other and (job.source.format == "hf_dataset" or len(other) < len(found)):
        raise SourceError(f"source.path {other[0]} is no dataset folder of save_to_disk (it has no {STATE})")
    return tuple(file for files in found.values() for file in files or ())


def _is_known(path: str) -> bool:
    return SourceFile(path, 0, "").ending in FORMATS


def _of_one_format(source: Source, found: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """The files to read, and those passed over because of their ending."""
    if source.format != "auto":
        wanted = "jsonl" if source.format == "openai_batch" else source.format
        matching = [file for file in found if FORMATS.get(file.ending) == wanted] or list(found)
        return matching, [file for file in found if file not in matching]
    known = [file for file in found if file.ending in FORMATS]
    if not known:
        raise SourceError(f"{found[0].path}: what format is it? Set source.format, or name it .jsonl, .parquet or .csv")
    first = known[0]
    for file in known:
        if FORMATS[file.ending] != FORMATS[first.ending]:
            raise SourceError(
                f"source.path holds files of two formats: {first.path} and {file.path}; narrow it with a glob, "
                "such as folder/*.jsonl"
            )
    return known, [file for file in found if file.ending not in FORMATS]


def _format(source: Source, files: Sequence[SourceFile], storage: Storage) -> Format:
    if source.format != "auto":
        assert source.format != "hf_dataset"
        return source.format
    format = FORMATS[files[0].ending]
    return "openai_batch" if format == "jsonl" and _begins_like_batch(files[0], storage) else format


def _begins_like_batch(file: SourceFile, storage: Storage) -> bool:
    with open_file(file, storage) as stream:
        try:
            first = stream.read(1 << 20).removeprefix(BOM).lstrip().partition(b"\n")[0]
            line = json.loads(first)
        except (OSError, ValueError, RecursionError):
            return False
    return isinstance(line, dict) and is_batch_line(line)
