"""The torch engine behind the Engine contract: a thread that steps, an event loop that listens.

    generate(request) -> backlog -> (window) -> inbox -> [thread: add, step, step, …] -> one callback per step -> events

The thread owns the engine; everything it is told comes through the inbox, everything it says goes out in one batch per
step. An exception out of a step is fatal: every open `generate` and every later call ends with EngineError.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

import torch

from configs.errors import EngineError, RowError
from workers.admission import row_error
from workers.commit import Output
from workers.contract import Capabilities, EngineInfo, Event, Finished, Request, Round

_CLOSE_TIMEOUT_S = 30.0
_T = TypeVar("_T")


class SteppedEngine(Protocol):
    """What the thread drives; see TorchEngine."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request, arrived_ns: int | None = None) -> None: ...

    def abort(self, request_id: str) -> list[Output]: ...

    def step(self) -> list[Output]: ...

    def drain_rounds(self) -> list[Round]: ...


class EngineLoop:
    """Runs an engine in its own thread. Its methods are called from one event loop."""

    def __init__(
        self,
        engine: SteppedEngine,
        info: EngineInfo,
        capabilities: Capabilities,
        *,
        window: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`window`: requests inside the engine at once; more wait outside it."""
        self._engine = engine
        self._info = info
        self._capabilities = capabilities
        self._window = window
        self._clock_ns = clock_ns
        self._backlog: deque[tuple[Request, int]] = deque()
        self._inside: set[str] = set()
        self._listeners: dict[str, asyncio.Queue[Event | RowError | EngineError]] = {}
        self._rounds: deque[Round] = deque()
        self._inbox: SimpleQueue[Callable[[], list[Output]] | None] = SimpleQueue()
        self._broken: EngineError | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="draftfleet-engine", daemon=True)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def info(self) -> EngineInfo:
        return self._info

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        """Events of one sample, Finished last.

        Raises:
            RowError: this row cannot be served, took too long, or was aborted.
            EngineError: the engine is broken or closed.
        """
        self._start()
        events = self._listen(request)
        self._backlog.append((request, self._clock_ns()))
        self._let_in()
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._stop_listening(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request; its `generate` raises RowError `aborted`. Unknown ids are fine."""
        waiting = [entry for entry in self._backlog if entry[0].request_id == request_id]
        if waiting:
            self._backlog.remove(waiting[0])
            self._deliver([(request_id, row_error("aborted", f"request {request_id!r} was aborted", retryable=True))])
        elif request_id in self._inside:
            self._inbox.put(lambda: self._engine.abort(request_id))

    def drain_rounds(self) -> list[Round]:
        """Steps since the last call."""
        rounds = []
        with contextlib.suppress(IndexError):
            while True:
                rounds.append(self._rounds.popleft())
        return rounds

    async def close(self) -> None:
        """Stop after the step under way, failing what is open.

        Raises:
            EngineError: the step did not end in time; only the end of the process will stop it.
        """
        self._break(EngineError("the engine was closed"))
        if not self._thread.is_alive():
            return
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineError(f"the engine's step did not end in {_CLOSE_TIMEOUT_S:g} s; end its process")

    def _start(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._event_loop is None:
            self._event_loop = asyncio.get_running_loop()
            self._thread.start()

    def _listen(self, request: Request) -> asyncio.Queue[Event | RowError | EngineError]:
        request_id = request.request_id
        if request_id in self._listeners or request_id in self._inside:
            raise row_error("duplicate_request", f"request {request_id!r} is running; give every sample its own id")
        self._listeners[request_id] = asyncio.Queue()
        return self._listeners[request_id]

    def _stop_listening(self, request_id: str) -> None:
        """The caller has its last event, or has gone; then nobody needs the rest."""
        del self._listeners[request_id]
        self._backlog = deque(entry for entry in self._backlog if entry[0].request_id != request_id)
        if request_id in self._inside:
            self._inbox.put(lambda: self._engine.abort(request_id))

    def _let_in(self) -> None:
        while self._backlog and len(self._inside) < self._window:
            request, arrived_ns = self._backlog.popleft()
            self._inside.add(request.request_id)
            self._inbox.put(partial(self._add, request, arrived_ns))

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand events to their listeners, on the event loop."""
        for request_id, event in outputs:
            if isinstance(event, Finished | RowError):
                self._inside.discard(request_id)
            if request_id in self._listeners:
                self._listeners[request_id].put_nowait(event)
        self._let_in()

    def _break(self, error: EngineError) -> None:
        """Nothing works from here on; the first cause is kept."""
        self._broken = self._broken or error
        self._backlog.clear()
        self._inside.clear()
        for listener in self._listeners.values():
            listener.put_nowait(self._broken)

    def _run(self) -> None:
        """The thread: take orders, step, report."""
        torch.set_num_threads(self._info.threads)
        try:
            while (outputs := self._take_orders()) is not None:
                if self._engine.has_work:
                    outputs += self._engine.step()
                self._rounds.extend(self._engine.drain_rounds())
                if outputs:
                    self._call_back(self._deliver, outputs)
        except Exception as error:
            broken = EngineError(f"the engine failed in a step: {type(error).__name__}: {error}")
            broken.__cause__ = error
            self._call_back(self._break, broken)

    def _take_orders(self) -> list[Output] | None:
        """Carry out what is in the inbox, waiting for something if there is nothing to do; None to stop."""
        outputs: list[Output] = []
        while not self._inbox.empty() or not (self._engine.has_work or outputs):
            order = self._inbox.get()
            if order is None:
                return None
            outputs += order()
        return outputs

    def _add(self, request: Request, arrived_ns: int) -> list[Output]:
        try:
            self._engine.add(request, arrived_ns)
        except RowError as error:
            return [(request.request_id, error)]
        return []

    def _call_back(self, function: Callable[[_T], None], argument: _T) -> None:
        """Run on the event loop; a loop that has closed has nobody left to tell."""
        assert self._event_loop is not None
        with contextlib.suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(function, argument)
