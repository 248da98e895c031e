"""What a key may look like, the same in every store, so that a run can be copied from one to another."""

from __future__ import annotations

from configs.errors import StorageError

MAX_PART_BYTES = 255
"""The longest file name of the usual local file systems (NAME_MAX)."""
MAX_KEY_BYTES = 1024
"""The longest key of S3, its prefix included."""


def checked_key(key: str) -> str:
    """The key itself, if every store can hold it.

    Raises:
        StorageError: an empty part (`a//b`, `/a`, `a/`), a part that starts with a dot, a control character, text that
            is not valid Unicode, or too long a key.
    """
    if problem := _problem(key):
        raise StorageError(f"key {key!r} {problem}; rename it")
    return key


def _problem(key: str) -> str | None:
    parts = key.split("/")
    if not all(parts):
        return "has an empty part or starts or ends with /"
    if any(part.startswith(".") for part in parts):
        return "has a part that starts with a dot: that is hidden, or leads out of the folder"
    if any(ord(character) < 32 or ord(character) == 127 for character in key):
        return "has a control character"
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if max(lengths) > MAX_PART_BYTES:
        return f"has a part of more than {MAX_PART_BYTES} bytes"
    return f"is longer than {MAX_KEY_BYTES} bytes" if len(key.encode()) > MAX_KEY_BYTES else None


def is_key(key: str) -> bool:
    """False for what lies in a folder but is no object of ours: hidden files, the `folder/` marks of S3 consoles."""
    return _problem(key) is None
