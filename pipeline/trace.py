"""Rounds as Parquet: what each took, and what each sequence in it drafted and kept.

One row per round, sequences as lists side by side, `stratum` an index into the strata of the file's metadata.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import ConfigError
from pipeline.layout import TRACES_DIR, trace_key
from pipeline.store.base import Store
from workers.contract import Round, SequenceRound
from workers.draft_length.cost import RoundShape, add_drafts
from workers.draft_length.replay import History, TracedRound
from workers.draft_length.stratum import Stratum

STRATA_KEY = b"draftfleet.strata"
ROUNDS_PER_FILE = 5000
SCHEMA = pa.schema(
    [
        ("busy_ns", pa.int64()),
        ("draft_ns", pa.int64()),
        ("verify_ns", pa.int64()),
        ("sample_ns", pa.int64()),
        ("num_decoding", pa.int32()),
        ("kv_tokens", pa.int32()),
        ("prefill_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("phase", pa.dictionary(pa.int8(), pa.string())),
        ("is_usual", pa.bool_()),
        ("request", pa.list_(pa.int32())),
        ("stratum", pa.list_(pa.int16())),
        ("asked", pa.list_(pa.int8())),
        ("offered", pa.list_(pa.int8())),
        ("accepted", pa.list_(pa.int8())),
    ]
)
"""`request` numbers the requests of an engine in the order in which they began to decode."""


class TraceWriter:
    """Collects the rounds of one engine and writes them, some thousand at a time."""

    def __init__(self, store: Store, incarnation: str) -> None:
        self._store = store
        self._incarnation = incarnation
        self._rows: list[dict[str, Any]] = []
        self._requests: dict[str, int] = {}
        self._strata: dict[tuple[str, str, str, str], int] = {}
        self._files = 0

    def add(self, rounds: Iterable[Round]) -> None:
        """Rounds in which anything decoded are kept."""
        self._rows += [self._row(done) for done in rounds if done.sequences]

    def flush(self, least: int = ROUNDS_PER_FILE) -> None:
        """Write what there is, if it is that many rounds.

        Raises:
            StorageError: it is kept, and comes with the next call.
        """
        rows = self._rows.copy()  # more may come while these are written
        if len(rows) < max(1, least):
            return
        metadata = {STRATA_KEY: json.dumps(list(self._strata)).encode()}
        table = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(metadata)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self._store.put(trace_key(self._incarnation, self._files), buffer.getvalue())
        self._files += 1
        del self._rows[: len(rows)]

    def _row(self, done: Round) -> dict[str, Any]:
        return {
            "busy_ns": done.busy_ns,
            "draft_ns": done.draft_ns,
            "verify_ns": done.verify_ns,
            "sample_ns": done.sample_ns,
            "num_decoding": done.num_decoding,
            "kv_tokens": done.kv_tokens,
            "prefill_tokens": done.num_prefill_tokens,
            "output_tokens": done.num_output_tokens,
            "phase": done.phase,
            "is_usual": done.is_usual,
            "request": [self._requests.setdefault(each.request_id, len(self._requests)) for each in done.sequences],
            "stratum": [self._strata.setdefault(_stratum(each), len(self._strata)) for each in done.sequences],
            "asked": [each.asked for each in done.sequences],
            "offered": [each.offered for each in done.sequences],
            "accepted": [each.accepted for each in done.sequences],
        }


@dataclass(slots=True)
class Trace:
    """Rounds, read back."""

    shapes: list[tuple[RoundShape, float]] = field(default_factory=list)
    """What was in each usual round, and its seconds."""
    histories: list[History] = field(default_factory=list)
    """Of the requests, in the order in which they began to decode."""
    rounds: int = 0
    sequence_rounds: int = 0

    @property
    def mean_batch(self) -> float:
        return self.sequence_rounds / self.rounds if self.rounds else 0.0

    @property
    def drafters(self) -> list[str]:
        return sorted({history.stratum.drafter for history in self.histories} - {"none"})


def trace_keys(store: Store) -> list[str]:
    """The trace files of a run, engine by engine, in order."""
    return sorted(stat.key for stat in store.list(TRACES_DIR))


def read_trace(files: Iterable[tuple[str, bytes]]) -> Trace:
    """Of files, each with its name; those of one engine one after the other.

    Raises:
        ConfigError: one of them is no trace.
    """
    trace, requests = Trace(), dict[tuple[str, int], History]()
    for name, body in files:
        engine = PurePath(name).name.rpartition("-")[0]
        rounds, strata = _read(name, body)
        for done in rounds:
            _add(trace, requests, engine, strata, done)
    return trace


def _add(
    trace: Trace, requests: dict[tuple[str, int], History], engine: str, strata: Sequence[Stratum], done: dict[str, Any]
) -> None:
    """One round. What its sequences had in the cache is told for all of them together."""
    context = done["kv_tokens"] // max(1, done["num_decoding"])
    drafted: dict[str, list[float]] = {}
    columns = (done[name] for name in ("request", "stratum", "asked", "offered", "accepted"))
    for number, place, asked, offered, accepted in zip(*columns, strict=True):
        stratum = strata[place]
        history = requests.get((engine, number))
        if history is None:
            history = requests[engine, number] = History(stratum, context)
            trace.histories.append(history)
        history.rounds.append(TracedRound(asked, offered, accepted))
        add_drafts(drafted, stratum.drafter, [1.0] * offered)
    trace.rounds += 1
    trace.sequence_rounds += done["num_decoding"]
    if done["is_usual"]:
        shape = RoundShape(done["num_decoding"], done["kv_tokens"], done["prefill_tokens"], drafted)
        trace.shapes.append((shape, done["busy_ns"] / 1e9))


def _read(name: str, body: bytes) -> tuple[list[dict[str, Any]], list[Stratum]]:
    try:
        table = pq.read_table(io.BytesIO(body))
        strata = [Stratum(*each) for each in json.loads((table.schema.metadata or {})[STRATA_KEY])]
        return table.select(SCHEMA.names).to_pylist(), strata
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} is no trace ({error}); a run writes one with engine.trace_rounds: true") from error


def _stratum(each: SequenceRound) -> tuple[str, str, str, str]:
    return each.task, each.band, each.drafter, each.acceptance
