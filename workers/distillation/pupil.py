"""What can be trained: a kind of drafter, and one that is being made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workers.architecture import Architecture
from workers.distillation.examples import LessonBatch
from workers.distillation.judgement import Judgement


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose choices are to be foreseen, as far as a pupil begins from it."""

    folder: Path
    arch: Architecture
    embedding: Tensor
    """[vocab, H]"""
    norm: Tensor
    """[H]"""
    lm_head: Tensor
    """[vocab, H]"""

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def precise(self) -> torch.dtype:
        """Of weights under training: at least float32."""
        return torch.float64 if self.embedding.dtype == torch.float64 else torch.float32


class Pupil(Protocol):
    """A drafter under training."""

    module: nn.Module
    """Its weights; those that want no gradient stay as they are."""

    def judge(self, batch: LessonBatch) -> Judgement: ...

    def publish(self, folder: Path) -> Mapping[str, Any]:
        """Write it as engines load it, which ends its training; returns what its provenance should say of it."""
        ...


class Kind(Protocol):
    """What a training makes."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """With others, it would be another training."""
        ...

    def capture(self, arch: Architecture) -> Sequence[int]:
        """Layers of the target whose inputs are among its lessons."""
        ...

    def begin(self, target: Target, answers: Sequence[Sequence[int]], longest: int) -> Pupil:
        """`answers`: their tokens; `longest`: tokens of a lesson at most."""
        ...


def trained(module: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that change."""
    return (parameter for parameter in module.parameters() if parameter.requires_grad)
