"""Ray on this machine, for this process alone, without its chatter."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

import ray

from configs.errors import ConfigError

ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4194304:glibc.malloc.trim_threshold=67108864"
}
"""What makes malloc ask for huge pages (glibc 2.35, where the kernel's transparent_hugepage is `madvise` or `always`).
A step reads every weight once, and with pages of 4 KiB it waits for the page tables a tenth of its time. Tensors under
4 MiB come from the heap, since a mapping of their own would be smaller than two such pages."""

AUTH_MODE = "RAY_AUTH_MODE"
"""Ray sets it to `token` for a cluster that it starts, unless it is set. Set here, it would come too late for the part
of Ray that is loaded already."""

SETTINGS = ALLOCATOR | {
    # For every actor pool Ray's C++ core warns of constructor arguments that could be lost with their node, of which a
    # local cluster has one (ray-project/ray#53727). Its log files have everything.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Ray's workers would yield to everything else on the machine; whoever wants that runs the whole under `nice`.
    "RAY_worker_niceness": "0",
    # Nobody looks at the metrics, task events and forwarded logs of a cluster without a dashboard whose driver asks for
    # no logs; collecting them took a hundredth of two cores. (To leave the services out: ray-project/ray#46732.)
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": "60",
}
"""Ray's settings by environment, where the user has set no others."""


def start_local(logical_cpus: int) -> None:
    """Start a local Ray with so many logical CPUs; `ray.shutdown` or the end of this process ends it.

    Raises:
        ConfigError: its folder for sockets and logs cannot be used.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with _held_back_stderr(), _told():
        ray.init(
            address="local",
            num_cpus=logical_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    mode = os.environ.get(AUTH_MODE, "unset")
    if mode.lower() != "token":
        print(
            f"{AUTH_MODE} is {mode}: Ray asks for no token, so whoever reaches this machine's ports may run code here; "
            "set it to token",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """The path of a socket may have 107 bytes, of which Ray's own part takes 65."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise ConfigError(
            f"Ray cannot start in its folder for sockets and logs: {error}\n"
            "set RAY_TMPDIR to a writable folder with a short path, such as /tmp"
        ) from error


@contextlib.contextmanager
def _held_back_stderr() -> Iterator[None]:
    """Keep what is written to file descriptor 2, and let it out only if the body fails."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
