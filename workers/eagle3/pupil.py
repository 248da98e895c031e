"""A draft head under training: begun from its target, judged by unrolled drafts, published in EAGLE's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.architecture import Architecture
from workers.distillation.examples import LessonBatch
from workers.distillation.judgement import Judgement
from workers.distillation.pupil import Pupil, Target
from workers.eagle3.head_config import HeadConfig, default_capture
from workers.eagle3.loss import judge
from workers.eagle3.publish import publish
from workers.eagle3.trainee import Trainee
from workers.eagle3.vocabulary import DraftVocabulary

_STD = 0.03


@dataclass(frozen=True, slots=True)
class HeadKind:
    """An EAGLE-3 head."""

    draft_vocab_size: int
    ttt_steps: int
    """How many drafts ahead it learns to go."""

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"draft_vocab_size": self.draft_vocab_size, "ttt_steps": self.ttt_steps}

    def capture(self, arch: Architecture) -> Sequence[int]:
        return default_capture(arch.num_layers)

    def begin(self, target: Target, answers: Sequence[Sequence[int]], longest: int) -> Pupil:
        arch = target.arch
        config = head_config(arch, min(self.draft_vocab_size, arch.vocab_size))
        vocabulary = DraftVocabulary.most_frequent(answers, config.draft_vocab_size, arch.vocab_size)
        with target.device:
            trainee = Trainee(config, arch.hidden_size, longest + self.ttt_steps).to(target.precise)
        initialize(trainee, target.norm, target.lm_head[vocabulary.target_ids.to(target.device)])
        return HeadPupil(trainee, target, vocabulary, self.ttt_steps, vocabulary.coverage(answers))


class HeadPupil:
    """One of them."""

    def __init__(
        self, trainee: Trainee, target: Target, vocabulary: DraftVocabulary, ttt_steps: int, coverage: float
    ) -> None:
        """`coverage`: share of the answers' tokens that it can propose."""
        self.module: nn.Module = trainee
        self._trainee = trainee
        self._target = target
        self._vocabulary = vocabulary
        self._on_device = vocabulary.to(target.device)
        self._ttt_steps = ttt_steps
        self._coverage = coverage

    def judge(self, batch: LessonBatch) -> Judgement:
        embedding, lm_head = self._target.embedding, self._target.lm_head
        return judge(self._trainee, batch, self._on_device, embedding, lm_head, steps=self._ttt_steps)

    def publish(self, folder: Path) -> Mapping[str, Any]:
        publish(folder, self._trainee.config, self._trainee.state_dict(), self._vocabulary, self._target.arch)
        return {"ttt_steps": self._ttt_steps, "draft_vocab_coverage": self._coverage}


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
