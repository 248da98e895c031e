"""The hunt for rows that kill their engine, played against engines that die of exactly those."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.quarantine import KILLS, SHARED_DEATHS, Start, Step, next_step


class Shard:
    """A shard that is started again and again until it commits; its engine dies of some of its rows."""

    def __init__(self, num_rows: int, poison: frozenset[int]) -> None:
        self.num_rows = num_rows
        self.poison = poison
        self.starts: list[Start] = []
        self.deaths = 0
        self.driver = 1

    @property
    def incarnation(self) -> str:
        return f"a{self.driver}-{self.deaths}"

    def step(self) -> Step:
        return next_step(self.starts, self.num_rows, self.driver, self.incarnation)

    def run(self, step: Step, neighbour_kills: bool = False) -> bool:
        """Start a step; whether it came to its end."""
        rows = None if len(step.rows) == self.num_rows else step.rows
        self.starts.append(Start(self.driver, self.incarnation, 0.0, step.alone, rows))
        died = bool(self.poison & set(step.rows)) or (neighbour_kills and not step.alone)
        self.deaths += died
        return not died

    def commit(self, limit: int = 500) -> Step:
        """Go on until the shard commits."""
        for _ in range(limit):
            step = self.step()
            if self.run(step) and not step.is_probe:
                return step
        raise AssertionError(f"no commit after {limit} starts")


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    num_rows = draw(st.integers(1, 64))
    return Shard(num_rows, draw(st.frozensets(st.integers(0, num_rows - 1), max_size=4)))


@given(shards())
def test_exactly_the_rows_that_kill_are_convicted_and_all_others_commit(shard: Shard) -> None:
    last = shard.commit()
    assert last.killers == shard.poison
    assert set(last.rows) | last.killers == set(range(shard.num_rows))


@given(shards())
def test_deaths_are_few(shard: Shard) -> None:
    shard.commit()
    each = 1 + math.ceil(math.log2(shard.num_rows)) + KILLS
    assert shard.deaths <= SHARED_DEATHS + each * len(shard.poison)


@given(shards())
def test_no_row_is_convicted_before_it_killed_three_times_by_itself(shard: Shard) -> None:
    while (step := shard.step()).is_probe or not shard.run(step):
        if step.is_probe:
            shard.run(step)
        for row in shard.step().killers:
            killed = [
                start
                for start, following in zip(shard.starts, [*shard.starts[1:], None], strict=True)
                if start.alone
                and (start.rows == (row,) or shard.num_rows == 1)
                and start.incarnation != (following.incarnation if following else shard.incarnation)
            ]
            assert len(killed) == KILLS


@given(st.integers(1, 64), st.integers(1, 10))
def test_a_shard_beside_a_killer_only_has_to_run_alone(num_rows: int, deaths: int) -> None:
    shard = Shard(num_rows, frozenset())
    for _ in range(deaths):
        shard.run(shard.step(), neighbour_kills=True)
    last = shard.commit()
    assert last.killers == frozenset()
    assert shard.deaths <= SHARED_DEATHS
    assert last.alone == (deaths >= SHARED_DEATHS)


@given(shards(), st.data())
def test_the_end_of_a_driver_proves_nothing(shard: Shard, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            step = shard.step()
            shard.starts.append(Start(shard.driver, shard.incarnation, 0.0, step.alone, step.rows))
            shard.driver += 1
        else:
            shard.run(shard.step())
    assert shard.step().killers <= shard.poison
    assert shard.commit().killers == shard.poison


@pytest.mark.parametrize("num_rows", [1, 8])
def test_deaths_that_do_not_come_again_convict_nobody(num_rows: int) -> None:
    """Whoever ends engines from outside can hit a row that runs by itself, once or twice."""
    shard = Shard(num_rows, frozenset({0}))
    deaths_by_itself = 0
    while deaths_by_itself < KILLS - 1:
        step = shard.step()
        deaths_by_itself += not shard.run(step) and step.alone and len(step.rows) == 1
    shard.poison = frozenset()
    assert shard.commit().killers == frozenset()


@given(st.builds(Start, st.integers(1), st.text(), st.floats(0, 1e10), st.booleans(), st.none() | st.just((1, 5))))
def test_a_start_is_read_as_it_was_written(start: Start) -> None:
    assert Start.from_json(start.to_json()) == start
