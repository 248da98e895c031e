"""Lessons on disk: the target's states are computed once and read in every epoch.

A chunk of examples is a safetensors file, written whole or not at all, so an interrupted extraction goes on where it
stopped. Files are memory-mapped: what fits into memory stays there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from workers.distillation.examples import Example, Lesson
from workers.distillation.teacher import Teacher

_CHUNK = 256
"""Examples per file, some 50,000 tokens."""
_TENSORS = tuple(field.name for field in fields(Lesson) if field.name != "num_prompt")


class LessonStore(Sequence[Lesson]):
    """The lessons of given examples, by place."""

    def __init__(self, folder: Path, examples: Sequence[Example]) -> None:
        self._folder = folder
        self._examples = examples
        self._files: dict[int, safe_open] = {}

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each lesson, known before any is computed."""
        return [len(example.token_ids) for example in self._examples]

    def fill(self, teacher: Teacher) -> Iterator[int]:
        """Compute what is missing; yields how many lessons are there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(self), _CHUNK):
            path = self._path(first // _CHUNK)
            if not path.exists():
                tensors: dict[str, Tensor] = {}
                for place, lesson in teacher.lessons(self._examples[first : first + _CHUNK]):
                    tensors |= {f"{first + place}.{name}": getattr(lesson, name) for name in _TENSORS}
                unfinished = path.with_suffix(".unfinished")
                save_file(tensors, unfinished)
                os.replace(unfinished, path)
            yield min(first + _CHUNK, len(self))

    def __getitem__(self, place: int) -> Lesson:  # type: ignore[override]  # no slices
        chunk = place // _CHUNK
        if chunk not in self._files:
            self._files[chunk] = safe_open(self._path(chunk), framework="pt")
        file = self._files[chunk]
        tensors: dict[str, Tensor] = {name: file.get_tensor(f"{place}.{name}") for name in _TENSORS}  # type: ignore[no-untyped-call]
        return Lesson(num_prompt=self._examples[place].num_prompt, **tensors)

    def _path(self, chunk: int) -> Path:
        return self._folder / f"{chunk:05}.safetensors"
