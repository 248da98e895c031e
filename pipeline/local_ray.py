"""Ray on this machine, for this process alone, without its chatter."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

import ray


def start_local(logical_cpus: int) -> None:
    """Start a local Ray with so many logical CPUs; `ray.shutdown` or the end of this process ends it.

    Warnings of its C++ core are switched off: for every actor pool it warns of constructor arguments that could be lost
    with their node, of which a local cluster has one (ray-project/ray#53727). Its log files have everything.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with _held_back_stderr():
        ray.init(
            address="local",
            num_cpus=logical_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


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
