"""The thread around an engine: what breaks it reaches everybody, what ends leaves the door open for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tiny_llama import make_request

from configs.errors import EngineError
from workers.commit import Output
from workers.contract import Capabilities, EngineInfo, Event, Finished, Request, Round, SpeculationStats
from workers.engine_loop import EngineLoop

END = Finished("text", (1,), "length", 0, 0.0, 0.0, 0.0, 1, SpeculationStats(), "none")


class StubbornEngine:
    """Finishes every request after a number of steps; `on_step` may do worse."""

    def __init__(self, steps: int = 1, on_step: Callable[[], None] = lambda: None) -> None:
        self.most_inside = 0
        self._steps, self._on_step = steps, on_step
        self._left: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, request: Request, arrived_ns: int | None = None) -> None:
        self._left[request.request_id] = self._steps
        self.most_inside = max(self.most_inside, len(self._left))

    def abort(self, request_id: str) -> list[Output]:
        self._left.pop(request_id, None)
        return []

    def step(self) -> list[Output]:
        self._on_step()
        self._left = {name: left - 1 for name, left in self._left.items()}
        ended: list[Output] = [(name, END) for name, left in self._left.items() if left == 0]
        self._left = {name: left for name, left in self._left.items() if left}
        return ended

    def drain_rounds(self) -> list[Round]:
        return [Round(1, 1, 0, 1, 0, 0, 1)]


def loop_around(engine: StubbornEngine, window: int = 4) -> EngineLoop:
    info = EngineInfo("stub", "0", "cpu", "float32", "none", "0" * 64, "none", 1, 4)
    return EngineLoop(engine, info, Capabilities(True, True, True, True, True, True, False, 100), window=window)


async def events_of(loop: EngineLoop, name: str) -> list[Event]:
    return [event async for event in loop.generate(make_request(name, [1]))]


def test_no_more_than_the_window_are_inside() -> None:
    engine = StubbornEngine(steps=3)

    async def main() -> None:
        loop = loop_around(engine, window=4)
        ends = await asyncio.gather(*(events_of(loop, f"row{i}") for i in range(25)))
        assert ends == [[END]] * 25
        await loop.close()

    asyncio.run(main())
    assert engine.most_inside == 4


def test_a_broken_step_reaches_every_caller_and_every_later_one() -> None:
    def fail() -> None:
        raise MemoryError("out of KV memory")

    async def main() -> None:
        loop = loop_around(StubbornEngine(on_step=fail), window=2)
        ends = await asyncio.gather(*(events_of(loop, f"row{i}") for i in range(9)), return_exceptions=True)
        ends += await asyncio.gather(events_of(loop, "late"), return_exceptions=True)
        for end in ends:
            assert isinstance(end, EngineError)
            assert "out of KV memory" in str(end)
            assert isinstance(end.__cause__, MemoryError)
        await loop.close()

    asyncio.run(main())


def test_close_is_bounded_even_if_a_step_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine_loop._CLOSE_TIMEOUT_S", 0.1)
    release = threading.Event()

    async def main() -> None:
        loop = loop_around(StubbornEngine(on_step=lambda: release.wait() and None))
        hanging = asyncio.create_task(events_of(loop, "row"))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        with pytest.raises(EngineError, match="end its process"):
            await loop.close()
        assert time.monotonic() - started < 5
        with pytest.raises(EngineError, match="closed"):
            await hanging

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_closing_an_engine_that_never_ran_is_fine() -> None:
    asyncio.run(loop_around(StubbornEngine()).close())


def test_rounds_are_drained_once() -> None:
    async def main() -> None:
        loop = loop_around(StubbornEngine(steps=5))
        await events_of(loop, "row")
        assert len(loop.drain_rounds()) >= 5
        assert loop.drain_rounds() == []
        await loop.close()

    asyncio.run(main())


def test_a_full_event_loop_does_not_lose_the_next_request() -> None:
    """Requests that come one after the other, each when the last has ended."""

    async def main() -> None:
        loop = loop_around(StubbornEngine(steps=2), window=1)
        for i in range(50):
            assert await events_of(loop, f"row{i % 3}") == [END]
        await loop.close()

    asyncio.run(main())
