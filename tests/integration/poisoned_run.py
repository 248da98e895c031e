"""`draftfleet` with engines that die, hang or fail of given rows: `poisoned_run.py KIND ROW_IDS ARGUMENTS...`

kill        the process ends by SIGKILL
hang        every Python thread of the process stops: C code sleeps and keeps the interpreter's lock
hang-once   the same, for the first process that creates the file `hung`

An engine's warm-up is a row with the id `warm-up`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pipeline.graph
from jobs.cli import main
from pipeline.actor import Assignment, EngineActor
from pipeline.fault_points import FaultPoints, PointFault
from workers.contract import Event, Request

KIND, ROW_IDS = sys.argv[1], frozenset(sys.argv[2].split(","))
HUNG = Path("hung").absolute()


class Poisoned(EngineActor):
    """An engine actor in which a row can be deadly."""

    def __init__(self, assignment: Assignment) -> None:
        slow = [PointFault("before_put", "sleep", nth=number, seconds=1.0) for number in range(1, 100)]
        super().__init__(assignment, FaultPoints(slow if KIND == "kill-late" else []))
        self._generate_really = self._engine.generate
        self._engine.generate = self._generate_or_die  # type: ignore[method-assign]

    async def _generate_or_die(self, request: Request) -> AsyncIterator[Event]:
        if request.row_id in ROW_IDS:
            if KIND.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if KIND == "hang" or not HUNG.exists():
                HUNG.touch()
                ctypes.PyDLL(None).sleep(3600)
        async for event in self._generate_really(request):
            yield event


pipeline.graph.EngineActor = Poisoned  # type: ignore[misc]

if __name__ == "__main__":
    main(sys.argv[3:])
