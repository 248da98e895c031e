"""From examples to a drafter: the target's states, training, and what came of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from configs.errors import UsageError
from configs.job import Model
from workers.architecture import Architecture, read_architecture
from workers.checkpoint import Checkpoint
from workers.distillation.curves import plot
from workers.distillation.examples import Example
from workers.distillation.lesson_store import LessonStore
from workers.distillation.provenance import write_provenance
from workers.distillation.pupil import Kind, Target
from workers.distillation.teacher import Teacher
from workers.distillation.trainer import Recipe, StepReport, Trainer
from workers.factory import dtype_of
from workers.llama import Llama
from workers.models import resolve, weights_sha256

CHECKPOINT = "training.pt"
LESSONS = "lessons"
HISTORY = "history.jsonl"
CURVES = "training.svg"
_SAVE_S = 120.0
"""Between checkpoints: at most so much training is lost."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training is."""

    stage: str
    """`states` or `training`."""
    done: int
    total: int
    report: StepReport | None = None


@dataclass(slots=True)
class Training:
    """One training: its folder holds what is needed to go on with it."""

    kind: Kind
    model: Model
    examples: Sequence[Example]
    folder: Path
    recipe: Recipe
    device: torch.device
    provenance: dict[str, Any] = field(default_factory=dict)

    def run(self, out: Path, on_progress: Callable[[Progress], None]) -> None:
        """Train to the end, going on from a checkpoint if there is one, and publish to `out`.

        Raises:
            UsageError: the folder holds another training.
        """
        source = resolve(self.model.path)
        arch = read_architecture(source)
        self._claim(weights_sha256(source))
        llama, target = self._target(source, arch)
        lessons = LessonStore(self.folder / LESSONS, self.examples)
        for done in lessons.fill(Teacher(llama)):
            on_progress(Progress("states", done, len(lessons)))
        answers = [example.token_ids[example.num_prompt :] for example in self.examples]
        torch.manual_seed(self.recipe.seed)
        pupil = self.kind.begin(target, answers, max(lessons.lengths))
        trainer = Trainer(pupil, lessons, lessons.lengths, self.recipe, self.device)
        if (self.folder / CHECKPOINT).exists():
            trainer.load(self.folder / CHECKPOINT)
        self._train(trainer, on_progress)
        out.mkdir(parents=True, exist_ok=True)
        told = pupil.publish(out)
        write_provenance(out, {**self.provenance, **told, "recipe": asdict(self.recipe), "steps": trainer.step})
        plot(read_history(self.folder / HISTORY), out / CURVES)

    def _claim(self, weights: str) -> None:
        """Make the folder this training's, or see that it is."""
        tokens = hashlib.sha256()
        for example in self.examples:
            tokens.update(json.dumps([example.num_prompt, *example.token_ids]).encode())
        mine = {"weights": weights, "examples": tokens.hexdigest(), **self.kind.settings}
        mine |= {"recipe": asdict(self.recipe), "dtype": self.model.dtype}
        path = self.folder / "training.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
            return
        theirs = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in mine.keys() | theirs.keys() if theirs.get(name) != mine.get(name)]
        if changed:
            raise UsageError(
                f"{self.folder} holds a training of other {', '.join(sorted(changed))}; give another --work folder, "
                "or the same data and settings to go on with it"
            )

    def _target(self, source: Path, arch: Architecture) -> tuple[Llama, Target]:
        checkpoint = Checkpoint(source, dtype=dtype_of(self.model), device=self.device)
        longest = max(len(example.token_ids) for example in self.examples)
        llama = Llama(arch, checkpoint, max_positions=longest, capture=self.kind.capture(arch))
        lm_head = llama.embedding if arch.tied_embeddings else checkpoint.tensor("lm_head.weight")
        return llama, Target(source, arch, llama.embedding, llama.norm, lm_head)

    def _train(self, trainer: Trainer, on_progress: Callable[[Progress], None]) -> None:
        saved_at = time.monotonic()
        forget_after(self.folder / HISTORY, trainer.step)
        with (self.folder / HISTORY).open("a", encoding="utf-8") as history:
            for report in trainer.run():
                history.write(json.dumps(asdict(report)) + "\n")
                on_progress(Progress("training", report.step, report.num_steps, report))
                if time.monotonic() - saved_at > _SAVE_S:
                    trainer.save(self.folder / CHECKPOINT)
                    history.flush()
                    saved_at = time.monotonic()
        trainer.save(self.folder / CHECKPOINT)


def read_history(path: Path) -> list[StepReport]:
    """The steps of a training, in order."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [StepReport(**{**step, "hit_rates": tuple(step["hit_rates"])}) for step in map(json.loads, lines)]


def forget_after(path: Path, step: int) -> None:
    """A training that was ended goes on from its last checkpoint: steps beyond that come again."""
    kept = [json.dumps(asdict(report)) + "\n" for report in read_history(path) if report.step <= step]
    path.write_text("".join(kept), encoding="utf-8")
