"""What a pupil learns from: sequences of the target's own making, and its states at each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and the target's answer to it."""

    task: str
    token_ids: Sequence[int]
    num_prompt: int

    @property
    def num_answer(self) -> int:
        return len(self.token_ids) - self.num_prompt


@dataclass(frozen=True, slots=True)
class Lesson:
    """An example with the target's states; n tokens, H hidden size."""

    token_ids: Tensor
    """[n]"""
    num_prompt: int
    taps: Tensor
    """[n, layers captured · H] the captured hidden states."""
    last: Tensor
    """[n, H] hidden states after the last norm, of which the target's logits are a product."""
    choices: Tensor
    """[n] the target's likeliest next token at each position."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class LessonBatch:
    """Lessons side by side, padded at the end; B of them, S = longest - 1 anchors."""

    token_ids: Tensor
    """[B, S + 1]"""
    taps: Tensor
    """[B, S, layers captured · H] at the anchors."""
    last: Tensor
    """[B, S + 1, H]"""
    choices: Tensor
    """[B, S + 1]"""
    counts: Tensor
    """[B, S + 1] whether the token after this position is one of the answer: what the pupil is judged by."""

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> LessonBatch:
        longest = max(map(len, lessons))

        def padded(tensors: Sequence[Tensor]) -> Tensor:
            out = tensors[0].new_zeros(len(tensors), longest, *tensors[0].shape[1:])
            for place, tensor in enumerate(tensors):
                out[place, : len(tensor)] = tensor
            return out

        counts = torch.zeros(len(lessons), longest, dtype=torch.bool)
        for place, lesson in enumerate(lessons):
            counts[place, lesson.num_prompt - 1 : len(lesson) - 1] = True
        return cls(
            token_ids=padded([lesson.token_ids for lesson in lessons]),
            taps=padded([lesson.taps for lesson in lessons])[:, :-1],
            last=padded([lesson.last for lesson in lessons]),
            choices=padded([lesson.choices for lesson in lessons]),
            counts=counts,
        )

    def to(self, device: torch.device) -> LessonBatch:
        """The same on another device."""
        return LessonBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut places into batches of at most `max_tokens` padded tokens, lengths alike together; one that is longer is
    alone."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        if found and (len(found[-1]) + 1) * lengths[place] <= max_tokens:
            found[-1].append(place)
        else:
            found.append([place])
    return found
