"""The processes of a local Ray that no token waits for."""

from __future__ import annotations

import contextlib
import os

import psutil

BYSTANDERS = (
    "ray::_StatsActor",
    "ray::ActorLocationTracker",
    "ray::_AutoscalingCoordinator",
    "ray::DashboardAgent",
    "ray/dashboard/dashboard.py",
    "ray/autoscaler/_private/monitor.py",
    "ray/_private/log_monitor.py",
)
"""Parts of their command lines: Ray Data's helper actors, and the services of a dashboard, an autoscaler and a log
viewer that a local run does not show."""


def yield_to_engines() -> None:
    """Leave the bystanders among this process's descendants only what nothing else wants of the CPU (`SCHED_IDLE`).

    Each wakes up to a hundred times a second. Where an engine runs on every core, each time is taken from an engine;
    on a machine with a free core this changes nothing. An ordinary user may lower a priority so, never raise it again.
    """
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):  # gone by now, or not ours to change: it stays as it is
            command = " ".join(process.cmdline())
            if any(name in command for name in BYSTANDERS):
                for thread in process.threads():
                    os.sched_setscheduler(thread.id, os.SCHED_IDLE, os.sched_param(0))
