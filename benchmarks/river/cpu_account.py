"""Where a family of processes spends its CPU time, by the part that each process plays.

Sampled from outside, so nothing has to be built into what is measured. Rates are taken between the first and the last
sample that lie in a time, so that nothing from before or after it is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

PARTS = (
    ("EngineActor", "engine"),
    ("bare_engine", "engine"),
    ("gcs_server", "gcs"),
    ("raylet/raylet", "raylet"),
    ("_StatsActor", "Ray Data's stats actor"),
    ("_AutoscalingCoordinator", "Ray Data's autoscaling actor"),
    ("ActorLocationTracker", "Ray Data's location actor"),
    ("DashboardAgent", "dashboard agent"),
    ("RuntimeEnvAgent", "runtime environment agent"),
    ("log_monitor.py", "log monitor"),
    ("monitor.py", "autoscaler monitor"),
    ("dashboard.py", "dashboard"),
    ("ray::", "other Ray worker"),
)
"""What a command line contains -> the part; the first that matches."""
STEPPING, BESIDE = "engine: the thread that steps", "engine: its other threads"

Point = tuple[float, float]
"""Seconds since the epoch, CPU seconds since the process or thread began."""


@dataclass(slots=True)
class Life:
    """One process, as it was seen."""

    part: str
    cpu: list[Point] = field(default_factory=list)
    threads: dict[int, list[Point]] = field(default_factory=dict)
    """Of engines only."""

    def stepping(self, start: float, end: float) -> float:
        """CPU seconds of the thread that used most: in an engine, the one that runs the model."""
        looked_since = min(points[0][0] for points in self.threads.values())
        return max(_spent(points, start, end, looked_since) for points in self.threads.values())


@dataclass(slots=True)
class CpuAccount:
    """CPU time of processes and all their descendants."""

    roots: Sequence[int]
    lives: dict[int, Life] = field(default_factory=dict)
    machine: list[Point] = field(default_factory=list)
    """Everything that ran on the machine, or was taken from it by its host."""

    def rates(self, start: float, end: float) -> dict[str, float]:
        """CPU seconds per second within a time, by part, most first."""
        spent: dict[str, float] = {}
        for life in self.lives.values():
            cpu = _spent(life.cpu, start, end)
            if life.part == "engine":
                stepping = life.stepping(start, end)
                spent[STEPPING] = spent.get(STEPPING, 0.0) + stepping
                spent[BESIDE] = spent.get(BESIDE, 0.0) + cpu - stepping
            else:
                spent[life.part] = spent.get(life.part, 0.0) + cpu
        span_s = self._span_s(start, end)
        return {part: cpu / span_s for part, cpu in sorted(spent.items(), key=lambda item: -item[1])}

    def rate_of_others(self, start: float, end: float) -> float:
        """The same of everything else on the machine, this process included: noise, if it is not little."""
        whole = _spent(self.machine, start, end) / self._span_s(start, end)
        return max(0.0, whole - sum(self.rates(start, end).values()))

    def _span_s(self, start: float, end: float) -> float:
        """Seconds between the first and the last sample inside."""
        inside = [at for at, _ in self.machine if start <= at <= end]
        assert len(inside) > 1, f"{end - start:.1f} s are too short for two samples, measure more"
        return inside[-1] - inside[0]

    def sample(self) -> None:
        """Look once at all of them."""
        now, times = time.time(), psutil.cpu_times()
        self.machine.append((now, sum(times) - times.idle - times.iowait - times.guest - times.guest_nice))
        for process in self._processes():
            with suppress(psutil.Error):
                self._see(process, now)

    def _processes(self) -> Iterator[psutil.Process]:
        for root in self.roots:
            with suppress(psutil.Error):
                process = psutil.Process(root)
                yield process
                yield from process.children(recursive=True)

    def _see(self, process: psutil.Process, now: float) -> None:
        with process.oneshot():
            command, times = " ".join(process.cmdline()), process.cpu_times()
        part = part_of(command, is_root=process.pid in self.roots)
        life = self.lives.setdefault(process.pid, Life(part))
        life.part = (
            part if part != "other Ray worker" else life.part
        )  # an idle worker may get a name, and lose it again
        life.cpu.append((now, times.user + times.system))
        if part == "engine":
            for thread in process.threads():
                life.threads.setdefault(thread.id, []).append((now, thread.user_time + thread.system_time))


def part_of(command: str, *, is_root: bool) -> str:
    """The part that a process plays, by its command line."""
    return next((part for text, part in PARTS if text in command), "driver" if is_root else "other")


def _spent(points: Sequence[Point], start: float, end: float, looked_since: float = 0.0) -> float:
    """CPU seconds between the first and the last sample inside; all of it, if the thread or process began inside: if it
    was not there when it was `looked` for before."""
    inside = [cpu for at, cpu in points if start <= at <= end]
    if not inside:
        return 0.0
    began_inside = points[0][0] > max(start, looked_since)
    return inside[-1] - (0.0 if began_inside else inside[0])


@contextmanager
def sampled(roots: Sequence[int], period_s: float) -> Iterator[CpuAccount]:
    """Keep the account of some processes and their descendants while the block runs. A sample costs milliseconds."""
    account, over = CpuAccount(tuple(roots)), threading.Event()
    thread = threading.Thread(target=_sample, args=(account, over, period_s), name="cpu-account", daemon=True)
    thread.start()
    try:
        yield account
    finally:
        over.set()
        thread.join()


def _sample(account: CpuAccount, over: threading.Event, period_s: float) -> None:
    account.sample()
    while not over.wait(period_s):
        account.sample()
