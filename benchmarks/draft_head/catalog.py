"""The lists from which prompts are put together, each split by name into a part for training and one held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
OF_LINES = ("topics.txt", "stories.txt", "code_objects.txt", "records.txt")
"""A section holds one entry per line."""
OF_BLOCKS = {"texts.txt": "passage", "snippets.txt": "snippet", "bugs.txt": "bug"}
"""A section is one entry of the list named here."""
SHARED = frozenset({"ending", "code_ending", "length", "language"})
"""In both parts: small closed vocabularies that say how to answer, not what about."""
HELD_OUT_SHARE = 10
AT_LEAST = 2

Lists = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Catalog:
    """One part of everything: the lists, and the frames of synthetic records with the fields they fill."""

    lists: Lists
    frames: Lists
    fields: Lists


def read_catalogs() -> tuple[Catalog, Catalog]:
    """For training, and held out."""
    lists: dict[str, list[str]] = {}
    frames: dict[str, list[str]] = {}
    fields: dict[str, list[str]] = {}
    for heading, lines in (section for file in OF_LINES for section in sections(FOLDER / file)):
        name, _, rest = heading.partition(" ")
        entries = [line for line in lines if line]
        if name == "frame":
            kind, _, names = rest.partition(": ")
            frames[kind] = [entry.replace("\\n", "\n") for entry in entries]
            fields[kind] = names.split(", ")
        else:
            lists.setdefault(name, []).extend(entries)
    for file, name in OF_BLOCKS.items():
        lists[name] = [block(name, heading, lines) for heading, lines in sections(FOLDER / file)]
    halves = [split_all(lists, AT_LEAST), split_all(frames, 1)]
    train, held_out = (Catalog(halves[0][part], halves[1][part], fields) for part in (0, 1))
    return train, held_out


def sections(path: Path) -> Iterator[tuple[str, list[str]]]:
    """`== heading` and the lines below it, without blank lines around them."""
    for part in path.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        heading, _, body = part.partition("\n")
        yield heading.strip(), body.strip("\n").split("\n")


def block(name: str, heading: str, lines: Sequence[str]) -> str:
    """A passage as it is; code in a fence, and below it what is wrong with it if the heading says so."""
    text = "\n".join(lines)
    if name == "passage":
        return text
    language, _, symptom = heading.partition(": ")
    return f"```{language}\n{text}\n```" + (f"\n\n{symptom}" if symptom else "")


def split_all(lists: Lists, at_least: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Each list split, those that are shared in both parts whole."""
    train, held_out = {}, {}
    for name, entries in lists.items():
        train[name], held_out[name] = (list(entries),) * 2 if name in SHARED else split(entries, at_least)
    return train, held_out


def split(entries: Sequence[str], at_least: int) -> tuple[list[str], list[str]]:
    """A tenth held out, by the hash of the entry: the order within a list follows its field, and must not matter."""
    ranked = sorted(entries, key=lambda entry: hashlib.sha256(entry.encode()).digest())
    out = set(ranked[: max(at_least, round(len(entries) / HELD_OUT_SHARE))])
    return [entry for entry in entries if entry not in out], [entry for entry in entries if entry in out]


def check_disjoint(train: Lists, held_out: Lists) -> None:
    """No entry may stand in both parts, not even in lists of different names.

    Raises:
        ValueError: names the entries that do.
    """
    known = {entry.casefold(): name for name, entries in train.items() for entry in entries if name not in SHARED}
    both = [
        f"{entry!r} ({known[entry.casefold()]}, {name})"
        for name, entries in held_out.items()
        for entry in entries
        if name not in SHARED and entry.casefold() in known
    ]
    if both:
        raise ValueError(f"in training and held out: {'; '.join(both)}")
