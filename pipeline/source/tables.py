"""Arrow batches as chunks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.source.chunk import BadRow, TableChunk, table_bytes

MAX_BATCH_ROWS = 4096


def batch_rows(size: int, num_rows: int, chunk_bytes: int) -> int:
    """Rows of about `chunk_bytes`, given the size in bytes of `num_rows` of them."""
    each = max(1, size // max(1, num_rows))
    return max(1, min(MAX_BATCH_ROWS, chunk_bytes // each))


def table_chunk(batch: pa.RecordBatch, file: int, first_ordinal: int, first_line: int) -> TableChunk:
    """A batch whose rows follow one another without gaps."""
    steps = np.arange(len(batch), dtype=np.int64)
    return TableChunk(file, first_ordinal + steps, first_line + steps, table_bytes(batch))


def sparse_chunk(
    batch: pa.RecordBatch, file: int, ordinals: list[int], lines: list[int], bad: list[BadRow]
) -> TableChunk:
    """A batch between whose rows bad rows were left out."""
    return TableChunk(
        file, np.array(ordinals, dtype=np.int64), np.array(lines, dtype=np.int64), table_bytes(batch), tuple(bad)
    )
