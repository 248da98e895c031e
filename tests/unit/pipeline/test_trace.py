"""Rounds on disk, and back as histories of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import ConfigError
from pipeline.store.local import LocalStore
from pipeline.trace import TraceWriter, read_trace, trace_keys
from workers.contract import Round, SequenceRound
from workers.draft_length.replay import TracedRound
from workers.draft_length.stratum import Stratum


def sequence(name: str, asked: int, accepted: int, task: str = "code") -> SequenceRound:
    return SequenceRound(name, task, "greedy", "eagle3", "match", asked, asked, accepted)


def done(*sequences: SequenceRound, prefill: int = 0, usual: bool = True) -> Round:
    return Round(
        busy_ns=5_000_000,
        num_seqs=len(sequences),
        num_prefill_tokens=prefill,
        num_verify_tokens=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        num_output_tokens=0,
        kv_tokens=100 * len(sequences),
        num_decoding=len(sequences),
        is_usual=usual,
        sequences=sequences,
    )


def files(store: LocalStore) -> list[tuple[str, bytes]]:
    return [(key, store.get(key)) for key in trace_keys(store)]


def test_what_was_written_is_read_back_request_by_request(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for engine in ("a1-first", "a1-second"):
        writer = TraceWriter(store, engine)
        writer.add(
            [done(sequence("x#0", 3, 1), sequence("y#0", 2, 2, "chat")), done(sequence("x#0", 3, 3), prefill=50)]
        )
        writer.flush(least=1)
        writer.add([done(sequence("y#0", 0, 0, "chat")), done()])
        writer.flush(least=1)
    trace = read_trace(files(store))
    assert len(trace.histories) == 4, "a request is its engine's own"
    x, y = trace.histories[:2]
    assert x.stratum == Stratum("code", "greedy", "eagle3")
    assert x.rounds == [TracedRound(3, 3, 1), TracedRound(3, 3, 3)]
    assert y.rounds == [TracedRound(2, 2, 2), TracedRound(0, 0, 0)]
    assert x.context_tokens == 100
    assert trace.rounds == 6
    assert trace.mean_batch == pytest.approx(8 / 6)
    shapes = [shape for shape, _ in trace.shapes]
    assert [shape.prefill_tokens for shape in shapes] == [0, 50, 0] * 2
    assert shapes[0].drafted == {"eagle3": [2.0, 2.0, 1.0]}


def test_a_few_rounds_wait_for_more(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = TraceWriter(store, "a1-x")
    writer.add([done(sequence("x#0", 1, 1))] * 10)
    writer.flush()
    assert trace_keys(store) == []
    writer.flush(least=1)
    writer.flush(least=1)
    assert len(trace_keys(store)) == 1


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some\.parquet is no trace .* engine\.trace_rounds"):
        read_trace([("some.parquet", b"PAR1")])
