"""Parquet files, row by row group, never whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import SourceError
from pipeline.source.chunk import TableChunk
from pipeline.source.tables import batch_rows, table_chunk

NEXT_STEP = "Copy the file again; if it is of another format, say so by source.format"


def read_parquet(
    stream: pa.NativeFile,
    file: int,
    path: str,
    first_ordinal: int,
    chunk_bytes: int,
    columns: Sequence[str] | None = None,
) -> Iterator[TableChunk]:
    """The file's rows; their line is their 1-based number in the file.

    Raises:
        SourceError: it is not Parquet, broken, or has a column twice.
    """
    line = 0
    try:
        parquet = pq.ParquetFile(stream)
        _refuse_twins(parquet.schema_arrow.names, path)
        size = sum(parquet.metadata.row_group(i).total_byte_size for i in range(parquet.metadata.num_row_groups))
        rows = batch_rows(size, parquet.metadata.num_rows, chunk_bytes)
        for batch in parquet.iter_batches(
            batch_size=rows, columns=None if columns is None else list(columns), use_threads=False
        ):
            yield table_chunk(batch, file, first_ordinal + line, line + 1)
            line += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {path} as Parquet (after row {line}): {error} {NEXT_STEP}") from None


def _refuse_twins(names: Sequence[str], path: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{path} has two columns named {twice!r}; rename one where the file is made")


def parquet_columns(stream: pa.NativeFile, path: str) -> list[str]:
    """The file's top-level columns, from its footer.

    Raises:
        SourceError: it is not Parquet.
    """
    try:
        names = list(pq.read_schema(stream).names)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {path} as Parquet: {error} {NEXT_STEP}") from None
    _refuse_twins(names, path)
    return names
