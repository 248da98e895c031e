"""What a drafter is trained on, and what it is judged by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from configs.errors import UsageError
from pipeline.answers import Answer, answers
from pipeline.run_state import RunView
from workers.distillation.examples import Example

HELD_OUT = 0.03
JUDGED = 40
"""Held-out prompts per task that a drafter is judged by."""


@dataclass(slots=True)
class Material:
    """Examples to train on, and others to judge by."""

    train: list[Example] = field(default_factory=list)
    held_out: list[Example] = field(default_factory=list)

    @classmethod
    def of(cls, views: Iterable[RunView], held_out: RunView | None) -> Material:
        """Without a run for it, the share whose hash is lowest is held out, so that it stays the same as runs grow."""
        found = cls()
        for view in views:
            for answer in answers(view):
                is_held_out = held_out is None and _share(answer.row_id.rpartition("#")[0]) < HELD_OUT
                (found.held_out if is_held_out else found.train).append(_example(answer))
        if held_out is not None:
            found.held_out += map(_example, answers(held_out))
        if not found.train or not found.held_out:
            raise UsageError("there are too few answers to train on some and judge by others; generate more")
        return found

    def judged(self) -> list[Example]:
        """So many per task."""
        per_task: dict[str, list[Example]] = {}
        for example in self.held_out:
            per_task.setdefault(example.task, []).append(example)
        return [example for task in sorted(per_task) for example in per_task[task][:JUDGED]]

    def counts(self) -> dict[str, int]:
        return {
            "train_answers": len(self.train),
            "train_answer_tokens": sum(example.num_answer for example in self.train),
            "held_out_answers": len(self.held_out),
        }

    def told(self) -> str:
        counts = self.counts()
        return (
            f"{counts['train_answers']:,} answers with {counts['train_answer_tokens']:,} tokens to train on, "
            f"{counts['held_out_answers']:,} held out"
        )


def _share(row: str) -> float:
    """A number in [0, 1) that belongs to a row."""
    return int.from_bytes(hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=6).digest()) / 2**48


def _example(answer: Answer) -> Example:
    prompt = answer.prompt_token_ids
    return Example(answer.task, prompt + answer.token_ids, len(prompt))
