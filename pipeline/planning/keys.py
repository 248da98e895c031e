"""The sort keys of planned rows: one small record per good row, sorted and searched out of core.

Rows are ordered by task, lane, work (most first), then input order. A row with the id of an earlier one is a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array = npt.NDArray[np.int64]

LANES = ("greedy", "sampled")
"""The engine paths of the torch engine, by whether a row's temperature is above 0."""
PROMPT_TOKENS_PER_WORK_TOKEN = 4
"""A prompt token costs a fraction of an output token, since a prefill reads the weights once for many tokens."""
MEMORY_LIMIT = "512MB"
BATCH_ROWS = 100_000

KEY_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("sampled", pa.bool_()),
        ("work", pa.int64()),
        ("ordinal", pa.int64()),
        ("chunk", pa.int32()),
        ("row", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("max_tokens", pa.int64()),
        ("samples", pa.int64()),
        ("bytes", pa.int64()),
        ("id_high", pa.int64()),
        ("id_low", pa.int64()),
        ("digest", pa.int64()),
        ("file", pa.int32()),
        ("line", pa.int64()),
    ]
)
"""`task` indexes the sorted task names, `chunk` and `row` the spill, `file` the source's files."""


def work_tokens(prompt_tokens: Int64Array, max_tokens: Int64Array, samples: Int64Array) -> Int64Array:
    """Estimated work of rows in output tokens of engine time; the samples of a row share its prefill."""
    return samples * max_tokens + -(-prompt_tokens // PROMPT_TOKENS_PER_WORK_TOKEN)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A row whose id an earlier row bears."""

    ordinal: int
    chunk: int
    row: int
    file: int
    line: int
    first_file: int
    first_line: int


class KeyTable:
    """All keys of a plan, in a database file of its own. Close it."""

    def __init__(self, folder: Path) -> None:
        self._connection = duckdb.connect(str(folder / "keys.duckdb"))
        self._connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self._connection.execute("SET temp_directory = ?", [str(folder / "sort")])
        self._connection.register("arrived", KEY_SCHEMA.empty_table())
        self._connection.execute("CREATE TABLE keys AS SELECT * FROM arrived")

    def __enter__(self) -> KeyTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, keys: pa.Table) -> None:
        self._connection.register("arrived", keys)
        self._connection.execute("INSERT INTO keys SELECT * FROM arrived")
        self._connection.unregister("arrived")

    def drop_duplicates(self) -> int:
        """Take every row out whose id an earlier row bears; `duplicates` tells of each. Returns how many there were."""
        self._connection.execute("""
            CREATE TABLE duplicates AS
            WITH shared AS (SELECT id_high, id_low FROM keys GROUP BY ALL HAVING count(*) > 1),
            ranked AS (
                SELECT keys.*, first_value(file) OVER same AS first_file, first_value(line) OVER same AS first_line,
                       row_number() OVER same AS place
                FROM keys SEMI JOIN shared USING (id_high, id_low)
                WINDOW same AS (PARTITION BY id_high, id_low ORDER BY ordinal)
            )
            SELECT ordinal, chunk, row, file, line, first_file, first_line FROM ranked WHERE place > 1
        """)
        self._connection.execute("DELETE FROM keys WHERE ordinal IN (SELECT ordinal FROM duplicates)")
        return self._number("SELECT count(*) FROM duplicates")

    def duplicates(self) -> Iterator[Duplicate]:
        """In input order."""
        for batch in self._batches("SELECT * FROM duplicates ORDER BY ordinal"):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Duplicate(*values)

    def sort(self) -> None:
        """Fix the plan's order; `in_order` then reads it as often as wanted."""
        self._connection.execute(
            "CREATE TABLE ordered AS SELECT * FROM keys ORDER BY task, sampled, work DESC, ordinal"
        )
        self._connection.execute("DROP TABLE keys")

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """All rows that are left, in the plan's order."""
        return self._batches("SELECT * FROM ordered")

    def digest(self) -> bytes:
        """A hash over the rows in the plan's order."""
        state = hashlib.sha256()
        for batch in self.in_order():
            state.update(batch.column("digest").to_numpy().tobytes())
        return state.digest()

    def longest_request(self) -> int:
        """Prompt and output tokens of the longest request; 0 without rows."""
        return self._number("SELECT coalesce(max(prompt_tokens + max_tokens), 0) FROM ordered")

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        cursor = self._connection.cursor()  # of its own, so that two readings may overlap
        yield from cursor.sql(query).to_arrow_reader(BATCH_ROWS)

    def _number(self, query: str) -> int:
        found = self._connection.execute(query).fetchone()
        assert found is not None
        return int(found[0])

    def token_histogram(self) -> dict[int, int]:
        """Rows by prompt tokens: the power of two that is the bucket's upper end, inclusive -> rows."""
        found = self._connection.execute("""
            SELECT CAST(pow(2, ceil(log2(greatest(prompt_tokens, 1)))) AS BIGINT) AS upper, count(*)
            FROM ordered GROUP BY upper ORDER BY upper
        """).fetchall()
        return dict(found)
