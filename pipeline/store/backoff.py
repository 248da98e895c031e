"""Trying again, later and later, with jitter (Brooker, "Exponential Backoff and Jitter": full jitter)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

FIRST_S = 0.1
LONGEST_S = 20.0

Answer = TypeVar("Answer")


def retry(call: Callable[[], Answer], passing: Callable[[Exception], bool], attempts: int) -> Answer:
    """The first answer of `call`, made at most `attempts` times; an error that is not `passing` ends it at once."""
    for attempt in range(attempts - 1):
        try:
            return call()
        except Exception as error:
            if not passing(error):
                raise
        time.sleep(random.uniform(0, min(LONGEST_S, FIRST_S * 2**attempt)))
    return call()
