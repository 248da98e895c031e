"""Training a pupil: steps over lessons, checkpoints that go on to the bit.

Everything random follows from (seed, epoch), and a checkpoint holds weights, optimizer and step, so a training that was
ended and resumed makes the same weights as one that was not.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.distillation.examples import Lesson, LessonBatch, batches
from workers.distillation.judgement import Judgement
from workers.distillation.pupil import Pupil, trained


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training is made of, besides its lessons."""

    epochs: float = 5.0
    learning_rate: float = 1.5e-3
    """Reached after the warm-up; falls to a tenth along a cosine."""
    warm_up: float = 0.02
    """Share of the steps."""
    batch_tokens: int = 1400
    gradient_norm: float = 0.5
    """Longer gradients are cut to this."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step."""

    step: int
    num_steps: int
    loss: float
    hit_rates: tuple[float, ...]
    """By draft position: how often the pupil's likeliest token was the target's."""


class Trainer:
    """A pupil, its optimizer and how far they are."""

    def __init__(
        self,
        pupil: Pupil,
        lessons: Sequence[Lesson],
        lengths: Sequence[int],
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        """`lengths`: tokens of each lesson."""
        self.pupil = pupil
        self.step = 0
        self._lessons = lessons
        self._recipe = recipe
        self._device = device
        self._batches = batches(lengths, recipe.batch_tokens)
        self._optimizer = torch.optim.AdamW(
            trained(pupil.module), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    @property
    def num_steps(self) -> int:
        return max(1, round(self._recipe.epochs * len(self._batches)))

    def run(self, until: Callable[[], bool] = lambda: False) -> Iterator[StepReport]:
        """Train to the end, or until told; go on by calling it again."""
        while self.step < self.num_steps and not until():
            epoch, place = divmod(self.step, len(self._batches))
            yield self._take(self._order(epoch)[place])

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._batches)))
        random.Random(f"{self._recipe.seed} {epoch}").shuffle(order)
        return order

    def _take(self, batch: int) -> StepReport:
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        judged = self._judge(batch)
        self._optimizer.zero_grad(set_to_none=True)
        judged.loss.backward()
        torch.nn.utils.clip_grad_norm_(trained(self.pupil.module), self._recipe.gradient_norm)
        self._optimizer.step()
        self.step += 1
        rates = (judged.hits / judged.counted.clamp(min=1)).tolist()
        return StepReport(self.step, self.num_steps, judged.loss.item(), tuple(rates))

    def _judge(self, batch: int) -> Judgement:
        lessons = LessonBatch.of([self._lessons[place] for place in self._batches[batch]])
        with torch.autocast(self._device.type, torch.bfloat16, enabled=lessons.last.dtype == torch.bfloat16):
            return self.pupil.judge(lessons.to(self._device))

    def _learning_rate(self) -> float:
        """Up along a line, then down along a half cosine to a tenth."""
        warm = max(1, round(self._recipe.warm_up * self.num_steps))
        if self.step < warm:
            return self._recipe.learning_rate * (self.step + 1) / warm
        done = (self.step - warm) / max(1, self.num_steps - warm)
        return self._recipe.learning_rate * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)

    def save(self, path: Path) -> None:
        """A checkpoint, whole or not there."""
        state = {
            "step": self.step,
            "weights": self.pupil.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        os.replace(unfinished, path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of the same training."""
        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.pupil.module.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
