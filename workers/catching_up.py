"""Going over what a drafter has missed, in passes of bounded size: a long text must not need a pass as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workers.drafter import Drafted

MOST_ROWS = 2048
"""Of one pass."""


def exceed_a_pass(sequences: Sequence[Drafted], num_waiting: Callable[[Drafted], int]) -> bool:
    return sum(map(num_waiting, sequences)) > MOST_ROWS


def passes(sequences: Sequence[Drafted], num_waiting: Callable[[Drafted], int]) -> Iterator[list[tuple[Drafted, int]]]:
    """What each pass goes over: sequences in slot order, each with how many of its waiting rows, which is at least one.
    Before the next is asked for, those of the last must not be waiting any more."""
    while behind := sorted((each for each in sequences if num_waiting(each) > 0), key=lambda each: each.slot):
        parts, room = list[tuple[Drafted, int]](), MOST_ROWS
        for each in behind:
            count = min(num_waiting(each), room)
            if count:
                parts.append((each, count))
            room -= count
        yield parts
