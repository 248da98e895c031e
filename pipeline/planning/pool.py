"""The processes that plan. Small inputs are planned in this process, since starting others takes seconds.

Results come in the order of the work, and only a few pieces of work are under way at once, so memory stays flat.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from types import TracebackType
from typing import TypeVar

from configs.errors import DraftfleetError, SourceError
from pipeline.planning.chunk import ChunkPlanner, ChunkReport, PlannerSpec
from pipeline.planning.spill import close_spill
from pipeline.planning.write import Part, WriteSpec, write_part
from pipeline.source.chunk import Chunk

SMALL_ROWS = 2000
AHEAD = 3
"""Pieces of work under way per process, the one that it does included."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_planner: ChunkPlanner | DraftfleetError | None = None


def _start(spec: PlannerSpec) -> None:
    """Runs once in every process. An error here would only say "broken pool", so it waits for the first work."""
    global _planner
    # Ctrl-C reaches every process of the terminal; only the one that gathers decides what follows. If that one dies
    # without a word, nobody else would end these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _planner = ChunkPlanner(spec)
    except DraftfleetError as error:
        _planner = error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _plan(numbered: tuple[int, Chunk]) -> ChunkReport:
    if isinstance(_planner, DraftfleetError):
        raise _planner
    assert _planner is not None
    return _planner.plan(*numbered)


def _write(work: tuple[WriteSpec, Part]) -> int:
    return write_part(*work)


class PlanPool:
    """Plans chunks and writes parts: in `processes` processes or, if there is little to do, in this one."""

    def __init__(self, spec: PlannerSpec, processes: int) -> None:
        self._spec = spec
        self._processes = processes
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> PlanPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close_spill()
        if self._executor is not None:
            if error is not None:  # nobody wants what the processes are at; a chunk takes seconds
                for child in multiprocessing.active_children():
                    child.terminate()
            self._executor.shutdown(wait=True, cancel_futures=True)

    def reports(self, chunks: Iterator[Chunk]) -> Iterator[ChunkReport]:
        """Every chunk planned, in order.

        Raises:
            DraftfleetError: what a planner raises about the job or the source as a whole.
        """
        numbered = enumerate(chunks)
        head, is_small = _peek(numbered)
        work = chain(head, numbered)
        if is_small or self._processes == 1:
            planner = ChunkPlanner(self._spec)
            yield from (planner.plan(number, chunk) for number, chunk in work)
            return
        # Forked processes would share the locks of this one's threads.
        self._executor = ProcessPoolExecutor(
            self._processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(self._spec,)
        )
        yield from self._in_order(_plan, work)

    def written(self, spec: WriteSpec, parts: Iterable[Part]) -> Iterator[int]:
        """The numbers of the parts, each as soon as it and those before it are written."""
        work = ((spec, part) for part in parts)
        yield from map(_write, work) if self._executor is None else self._in_order(_write, work)

    def _in_order(self, do: Callable[[Item], Result], work: Iterable[Item]) -> Iterator[Result]:
        assert self._executor is not None
        under_way: deque[Future[Result]] = deque()
        try:
            for item in work:
                under_way.append(self._executor.submit(do, item))
                if len(under_way) >= AHEAD * self._processes:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool:
            raise SourceError(
                "a planning process was killed, most likely for lack of memory; free some, or split very large rows"
            ) from None


def _peek(numbered: Iterator[tuple[int, Chunk]]) -> tuple[list[tuple[int, Chunk]], bool]:
    """The first chunks, and whether they are all and hold few rows."""
    head: list[tuple[int, Chunk]] = []
    for number, chunk in numbered:
        head.append((number, chunk))
        if sum(chunk.num_rows for _, chunk in head) >= SMALL_ROWS:
            return head, False
    return head, True
