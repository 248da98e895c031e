"""From examples to a head: vocabulary, the target's states, training, and what came of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.errors import UsageError
from configs.job import Model
from workers.architecture import Architecture, read_architecture
from workers.checkpoint import Checkpoint
from workers.eagle3.curves import plot
from workers.eagle3.examples import Example
from workers.eagle3.head_config import HeadConfig, default_capture
from workers.eagle3.lesson_store import LessonStore
from workers.eagle3.publish import publish
from workers.eagle3.teacher import Teacher
from workers.eagle3.trainee import Trainee
from workers.eagle3.trainer import Recipe, StepReport, Trainer
from workers.eagle3.vocabulary import DraftVocabulary
from workers.factory import dtype_of
from workers.llama import Llama
from workers.models import resolve, weights_sha256

CHECKPOINT = "training.pt"
LESSONS = "lessons"
HISTORY = "history.jsonl"
CURVES = "training.svg"
_SAVE_S = 120.0
"""Between checkpoints: at most so much training is lost."""
_STD = 0.03


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training is."""

    stage: str
    """`states` or `training`."""
    done: int
    total: int
    report: StepReport | None = None


@dataclass(slots=True)
class HeadTraining:
    """One training: its folder holds what is needed to go on with it."""

    model: Model
    examples: Sequence[Example]
    folder: Path
    recipe: Recipe
    draft_vocab_size: int
    device: torch.device
    provenance: dict[str, Any] = field(default_factory=dict)

    def run(self, out: Path, on_progress: Callable[[Progress], None]) -> None:
        """Train to the end, going on from a checkpoint if there is one, and publish the head to `out`.

        Raises:
            UsageError: the folder holds another training.
        """
        source = resolve(self.model.path)
        arch = read_architecture(source)
        config = head_config(arch, min(self.draft_vocab_size, arch.vocab_size))
        self._claim(arch, weights_sha256(source))
        answers = [example.token_ids[example.num_prompt :] for example in self.examples]
        vocabulary = DraftVocabulary.most_frequent(answers, config.draft_vocab_size, arch.vocab_size)
        target, lm_head = self._target(source, arch, config)
        lessons = LessonStore(self.folder / LESSONS, self.examples)
        for done in lessons.fill(Teacher(target)):
            on_progress(Progress("states", done, len(lessons)))
        trainer = self._trainer(config, arch, target, lm_head, lessons, vocabulary)
        self._train(trainer, on_progress)
        told = {
            "recipe": asdict(self.recipe),
            "steps": trainer.step,
            "draft_vocab_coverage": vocabulary.coverage(answers),
        }
        publish(out, config, trainer.trainee.state_dict(), vocabulary, arch, provenance=self.provenance | told)
        plot(read_history(self.folder / HISTORY), out / CURVES)

    def _claim(self, arch: Architecture, weights: str) -> None:
        """Make the folder this training's, or see that it is."""
        tokens = hashlib.sha256()
        for example in self.examples:
            tokens.update(json.dumps([example.num_prompt, *example.token_ids]).encode())
        mine = {"weights": weights, "examples": tokens.hexdigest(), "draft_vocab_size": self.draft_vocab_size}
        mine |= {"recipe": asdict(self.recipe), "dtype": self.model.dtype}
        path = self.folder / "training.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
            return
        theirs = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in mine.items() if theirs.get(name) != value]
        if changed:
            raise UsageError(
                f"{self.folder} holds a training of other {', '.join(changed)}; give another --work folder, "
                "or the same data and settings to go on with it"
            )

    def _target(self, source: Path, arch: Architecture, config: HeadConfig) -> tuple[Llama, Tensor]:
        checkpoint = Checkpoint(source, dtype=dtype_of(self.model), device=self.device)
        longest = max(len(example.token_ids) for example in self.examples)
        target = Llama(arch, checkpoint, max_positions=longest, capture=config.capture)
        return target, target.embedding if arch.tied_embeddings else checkpoint.tensor("lm_head.weight")

    def _trainer(
        self,
        config: HeadConfig,
        arch: Architecture,
        target: Llama,
        lm_head: Tensor,
        lessons: LessonStore,
        vocabulary: DraftVocabulary,
    ) -> Trainer:
        torch.manual_seed(self.recipe.seed)
        longest = max(lessons.lengths) + self.recipe.ttt_steps
        precise = torch.float64 if target.dtype == torch.float64 else torch.float32
        with self.device:
            trainee = Trainee(config, arch.hidden_size, longest).to(precise)
        initialize(trainee, target.norm, lm_head[vocabulary.target_ids.to(self.device)])
        trainer = Trainer(
            trainee,
            lessons,
            lessons.lengths,
            vocabulary,
            embedding=target.embedding,
            lm_head=lm_head,
            recipe=self.recipe,
        )
        if (self.folder / CHECKPOINT).exists():
            trainer.load(self.folder / CHECKPOINT)
        return trainer

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


def head_config(arch: Architecture, draft_vocab_size: int) -> HeadConfig:
    """A head shaped like one layer of its target."""
    return HeadConfig(
        num_heads=arch.num_heads,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        intermediate_size=arch.intermediate_size,
        rms_norm_eps=arch.rms_norm_eps,
        rope_theta=float(arch.inverse_frequencies[1].pow(-arch.head_dim / 2)),
        draft_vocab_size=draft_vocab_size,
        capture=default_capture(arch.num_layers),
        norm_before_residual=False,
    )


@torch.no_grad()
def initialize(trainee: Trainee, norm_H: Tensor, lm_head_VH: Tensor) -> None:
    """Small random weights, half as large where they enter the residual; norm and output as the target has them."""
    for name, parameter in trainee.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=_STD / 2 if name.endswith(("o_proj.weight", "down_proj.weight")) else _STD)
    trainee.norm.weight.copy_(norm_H)
    trainee.lm_head.weight.copy_(lm_head_VH)
