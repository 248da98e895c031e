"""The progress line: right on a terminal, quiet in a log."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from planned_run import planned_shard

from jobs.progress import LOG_PERIOD_S, Progress, Reading, duration
from pipeline.commit import Receipt
from pipeline.forecast import Forecast
from pipeline.pulse import Pulse, fold
from pipeline.usage import Usage


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_over(stream: io.StringIO, clock: Clock) -> Progress:
    shards = [planned_shard(0), planned_shard(1), planned_shard(2)]
    return Progress(30, Forecast(shards), stream=stream, clock=clock)


def test_the_line_tells_samples_errors_rates_and_eta() -> None:
    clock = Clock()
    progress = progress_over(io.StringIO(), clock)
    progress.pulse(Pulse(up=2, output_tokens=0, updated=100.0))
    clock.now = 10.0
    progress.pulse(Pulse(2, 2, 2, 1000, 200, 80, 100, updated=110.0))
    progress.receipt(
        Receipt(0, "committed", Usage(samples_ok=9, samples_error=1, errors={"timeout": 1}, output_tokens=500), 10)
    )
    reading = progress.reading()
    assert (reading.done, reading.total) == (10, 30)
    assert reading.tokens_per_s == reading.tokens_per_s_now == 100.0
    # Two shards of 1000 planned tokens each are left, and 500 tokens of them are already made.
    used = (500 + 0.7 * 800) / (1000 + 800)
    assert reading.eta_s is not None
    assert abs(reading.eta_s - (2000 * used - 500) / 100) < 1e-9
    assert reading.text() == (
        "10/30 samples · 1 errors (timeout 1) · 100 tok/s now, 100 overall · "
        f"ETA {duration(reading.eta_s)} · accepted 40% · K 2.0"
    )


def test_an_earlier_attempt_counts_as_done_but_not_as_speed() -> None:
    clock = Clock()
    progress = Progress(30, Forecast([planned_shard(2)]), Usage(samples_ok=20, output_tokens=900), io.StringIO(), clock)
    progress.pulse(Pulse(up=1, output_tokens=10, updated=1.0))
    clock.now = 1.0
    assert progress.reading().done == 20
    assert progress.reading().tokens_per_s == 10.0


def test_before_any_engine_there_is_no_rate() -> None:
    progress = progress_over(io.StringIO(), Clock())
    assert progress.reading().text() == "0/30 samples · starting engines"
    progress.pulse(Pulse(engines=2, updated=100.0))  # they live and load their weights
    assert progress.reading().text() == "0/30 samples · starting engines"


@given(
    periods=st.integers(4, 60),
    lag=st.floats(0.01, 0.99),
    speeds=st.tuples(st.integers(10, 1000), st.integers(10, 1000)),
)
def test_the_rate_now_does_not_mind_when_each_engine_speaks(periods: int, lag: float, speeds: tuple[int, int]) -> None:
    """Two engines of constant speed, each with a heartbeat about every 10 s, one a part `lag` of it after the other."""
    progress = Progress(30, Forecast([planned_shard(0)]), stream=io.StringIO(), clock=Clock(), window_s=20.0)
    snapshots: dict[int, dict[str, Any]] = {}
    for period in range(periods):
        for engine, speed in enumerate(speeds):
            at = 10.01 * (period + engine * lag)
            snapshots[engine] = snapshot(updated=at, output_tokens=round(speed * at))
            progress.pulse(fold(snapshots.values()))
    now = progress.reading().tokens_per_s_now
    assert now is not None
    assert abs(now - sum(speeds)) <= 0.05 * sum(speeds)


def snapshot(updated: float, output_tokens: int = 0, serving_ns: int = 1, **more: Any) -> dict[str, Any]:
    """What an engine's ledger says, as far as a pulse reads it."""
    work = {"output_tokens": output_tokens, "draft_tokens": 0, "accepted_tokens": 0, "sequence_rounds": 0}
    seconds = {"load": 5, "warm_up": 2, "busy": serving_ns}
    return {"updated": updated, "lifetime_ns": sum(seconds.values()), "seconds_ns": seconds, "work": work, **more}


def test_an_engine_that_died_is_counted_but_not_as_one_that_is_heard() -> None:
    silent = [snapshot(updated=100.0) for _ in range(2)]
    told = [snapshot(updated=195.0, died_of="the GPU is gone")]
    loading = [snapshot(updated=199.0, serving_ns=0)]
    pulse = fold([*silent, *told, *loading, snapshot(updated=200.0), snapshot(updated=190.0)])
    assert (pulse.engines, pulse.up, pulse.heard, pulse.updated) == (6, 5, 3, 200.0)


def test_a_log_gets_a_line_now_and_then_and_a_last_one() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = progress_over(stream, clock)
    for second in range(int(2 * LOG_PERIOD_S)):
        clock.now = float(second)
        progress.pulse(Pulse(up=1, output_tokens=second, updated=float(second)))
        progress.draw()
    progress.draw(final=True)
    assert len(stream.getvalue().splitlines()) == 3
    assert "\r" not in stream.getvalue()


def test_a_terminal_line_is_redrawn_and_never_wraps(monkeypatch: object) -> None:
    stream = Terminal()
    progress = progress_over(stream, Clock())
    progress.draw()
    progress.draw(final=True)
    assert stream.getvalue().count("\r") == 2
    assert stream.getvalue().endswith("\n")
    assert all(len(part.removeprefix("\x1b[K").rstrip("\n")) <= 79 for part in stream.getvalue().split("\r"))


def test_many_kinds_of_errors_are_cut_short() -> None:
    errors = {f"code_{number}": number for number in range(1, 9)}
    reading = Reading(8, 9, errors, 0, None, None, None, None, None, 1)
    assert "(code_8 8, code_7 7, code_6 6, …)" in reading.text()


def test_durations() -> None:
    assert [duration(value) for value in (0, 59.6, 3599, 3723, -1)] == ["0:00", "1:00", "59:59", "1:02:03", "0:00"]
