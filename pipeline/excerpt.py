"""A row's value as a message may show it: messages go to consoles and logs, where prompts must not."""

from __future__ import annotations

MAX_CHARS = 40


def excerpt(value: object) -> str:
    """As Python writes it, of a longer one the beginning."""
    # Cut first: writing out a megabyte to show forty characters of it would be slow.
    text = repr(value[: MAX_CHARS + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
