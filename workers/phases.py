"""Where a step's time goes: draft, verify (the target's pass), sample (its tokens, and which drafts stay). What is left
is the host's.

Each phase is also a range of its own in a `torch.profiler` trace, and in Nsight's on CUDA. There kernels run behind the
host, and the wait for the target's pass falls into `sample`, where its first result is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch.profiler import record_function

Phase = Literal["draft", "verify", "sample"]


class Phases:
    """Nanoseconds of the step under way, by phase."""

    def __init__(self, clock_ns: Callable[[], int], device: torch.device) -> None:
        self._clock_ns = clock_ns
        self._is_cuda = device.type == "cuda"
        self._spent: dict[Phase, int] = {}

    def drain(self) -> dict[Phase, int]:
        """Those of the step, which ends with this."""
        spent, self._spent = self._spent, {}
        return spent

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        started_ns = self._clock_ns()
        if self._is_cuda:
            torch.cuda.nvtx.range_push(phase)
        try:
            with record_function(phase):
                yield
        finally:
            if self._is_cuda:
                torch.cuda.nvtx.range_pop()
            self._spent[phase] = self._spent.get(phase, 0) + self._clock_ns() - started_ns
