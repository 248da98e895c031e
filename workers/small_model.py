"""A small model under training, to draft for a larger one: some of its layers, taught to choose as it does.

Embedding and output stay the target's, so only the layers between and the last norm learn. The loss is the
cross-entropy to the target's whole distribution (https://arxiv.org/abs/1503.02531), over the tokens of its own answers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

from configs.errors import UsageError
from workers.architecture import Architecture
from workers.distillation.examples import LessonBatch
from workers.distillation.judgement import Judgement
from workers.distillation.pupil import Pupil, Target

_BESIDE = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "chat_template.jinja")
"""Of the target's folder, what every model of this tokenizer has."""


@dataclass(frozen=True, slots=True)
class SmallModelKind:
    """A model of fewer layers."""

    num_layers: int

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"num_layers": self.num_layers}

    def capture(self, arch: Architecture) -> Sequence[int]:
        return ()

    def begin(self, target: Target, answers: Sequence[Sequence[int]], longest: int) -> Pupil:
        """Raises:
        UsageError: it would not be smaller than the target.
        """
        if self.num_layers >= target.arch.num_layers:
            raise UsageError(f"--layers {self.num_layers}: the target has {target.arch.num_layers}; give fewer")
        model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=target.precise)
        kept = spread(self.num_layers, target.arch.num_layers)
        model.model.layers = nn.ModuleList([model.model.layers[layer] for layer in kept])
        for place, layer in enumerate(model.model.layers):
            layer.self_attn.layer_idx = place
        model.config.num_hidden_layers = len(kept)
        model.get_input_embeddings().requires_grad_(False)
        model.get_output_embeddings().requires_grad_(False)
        return SmallModelPupil(model.to(target.device), target, kept)


def spread(count: int, layers: int) -> list[int]:
    """Layers evenly apart, the first and the last among them."""
    return [0] if count == 1 else [round(place * (layers - 1) / (count - 1)) for place in range(count)]


class SmallModelPupil:
    """One of them."""

    def __init__(self, model: Any, target: Target, kept: Sequence[int]) -> None:
        """`model`: transformers'; `kept`: the target's layers that it began from."""
        self.module: nn.Module = model
        self._model = model
        self._target = target
        self._kept = kept

    def judge(self, batch: LessonBatch) -> Judgement:
        hidden = self._model.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state[batch.counts]
        logits = self._model.lm_head(hidden)
        with torch.no_grad():
            wanted = F.linear(batch.last[batch.counts], self._target.lm_head).float().softmax(-1)
        loss = -(wanted * logits.float().log_softmax(-1)).sum(-1).mean()
        hits = (logits.argmax(-1) == batch.choices[batch.counts]).sum()
        return Judgement(loss, hits[None], batch.counts.sum()[None])

    def publish(self, folder: Path) -> Mapping[str, Any]:
        self._model.to(torch.bfloat16).save_pretrained(folder)
        for pattern in _BESIDE:
            for file in self._target.folder.glob(pattern):
                shutil.copy(file, folder)
        return {"target_layers": list(self._kept)}
