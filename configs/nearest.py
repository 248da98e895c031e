"""What somebody probably meant: the nearest of the names that exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate closest to `name` by matching blocks (Ratcliff/Obershelp), or None if none is close."""
    by_folded = {_folded(candidate): candidate for candidate in candidates}
    close = get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean temperature?`, or every candidate if none is close and they are few, or nothing."""
    names = sorted(candidates)
    close = nearest(name, names)
    if close is not None:
        return f"; did you mean {close}?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
