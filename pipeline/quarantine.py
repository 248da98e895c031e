"""Which rows kill the engine: what to run of a shard next, told from the record of its earlier starts.

Each start is put on record before it begins (`_attempts/<shard>/<n>.json`). An engine that dies writes nothing, but its
shard is started again by another engine of the same driver, which tells that the start before ended in a death.

    first and second death    the shard shared its engine with others, any of them may have killed it
    afterwards                it runs alone: a death now is its own
    after a death alone       probes of half of the suspected rows, until one row is left (bisection)
    a row that had the engine to itself at three deaths is convicted: it becomes the error `engine_killed`, the others
    run

One death of a row by itself would not do: engines are also ended from outside, by a preempted node or for want of
memory, and a run that suffers much of that would lose rows that did nothing.

What a probe generates is thrown away: it only shows whether the engine survives. A start that was cut off by the end of
its driver proves nothing and is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

SHARED_DEATHS = 2
"""So often a shard may lose its engine in company before it has to run alone."""
KILLS = 3
"""So often the engine died with nothing but a row in it before that row is convicted."""


@dataclass(frozen=True, slots=True)
class Start:
    """A shard was given to an engine."""

    attempt: int
    """The driver's."""
    incarnation: str
    started: float
    """Seconds since the epoch, by the engine's clock."""
    alone: bool = False
    """Nothing else was in the engine."""
    rows: tuple[int, ...] | None = None
    """Positions in the shard; None: all."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Start:
        rows = data.get("rows")
        return cls(**{**data, "rows": None if rows is None else tuple(rows)})


@dataclass(frozen=True, slots=True)
class Step:
    """What to run next of a shard."""

    rows: tuple[int, ...]
    """Positions, ascending."""
    alone: bool = False
    is_probe: bool = False
    """It answers only whether the engine lives through it."""
    killers: frozenset[int] = frozenset()
    """Rows that never run again."""


def next_step(starts: Sequence[Start], num_rows: int, attempt: int, incarnation: str) -> Step:
    """The step of a shard of `num_rows` rows that an engine, `incarnation` of `attempt`, takes after these `starts`."""
    everything = tuple(range(num_rows))
    suspects: tuple[int, ...] = ()
    killers: set[int] = set()
    deaths_by: Counter[int] = Counter()
    deaths_together = deaths_alone = 0
    for start, survived in _ended(starts, attempt, incarnation):
        rows = everything if start.rows is None else start.rows
        if survived:
            suspects = tuple(row for row in suspects if row not in rows) if start.alone else suspects
            continue
        if not start.alone:
            deaths_together += 1
            continue
        deaths_alone += 1
        suspects = rows
        if len(rows) == 1:
            deaths_by.update(rows)
            if deaths_by[rows[0]] == KILLS:
                killers.update(rows)
                suspects = ()
    alone = deaths_alone > 0 or deaths_together >= SHARED_DEATHS
    if suspects:
        return Step(suspects[: (len(suspects) + 1) // 2], alone=True, is_probe=True, killers=frozenset(killers))
    return Step(tuple(row for row in everything if row not in killers), alone, killers=frozenset(killers))


def _ended(starts: Sequence[Start], attempt: int, incarnation: str) -> Iterator[tuple[Start, bool]]:
    """The starts whose end is known, and whether the engine survived them."""
    now = Start(attempt, incarnation, 0.0)
    for start, following in pairwise([*starts, now]):
        if start.attempt == following.attempt:
            yield start, start.incarnation == following.incarnation
