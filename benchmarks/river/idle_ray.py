"""A Ray cluster on this machine with nothing to do, as `draftfleet run` starts it, until its input is closed.

    python idle_ray.py

Prints one line once it is up and its services have settled.
"""

from __future__ import annotations

import sys
import time

from pipeline.local_ray import start_local

SETTLED_S = 10.0
"""Ray's services still load their own modules after `ray.init` has returned."""


def main() -> None:
    start_local(2)
    time.sleep(SETTLED_S)
    print("up", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
