"""How a head is judged on a batch, step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.distillation.examples import LessonBatch
from workers.distillation.judgement import Judgement
from workers.eagle3.trainee import Trainee
from workers.eagle3.vocabulary import DraftVocabulary

STEP_WEIGHT = 0.8
"""Each further step counts so much of the one before: it is reached only if that one was accepted."""


def judge(
    trainee: Trainee,
    batch: LessonBatch,
    vocabulary: DraftVocabulary,
    embedding: Tensor,
    lm_head: Tensor,
    *,
    steps: int,
) -> Judgement:
    """Unroll the head over a batch. `embedding`, `lm_head` [vocab, H]: the target's.

    The loss is Σ 0.8^j · the mean cross-entropy of step j to the target's distribution over the draft vocabulary, where
    the target's likeliest token is in it; the others have no distribution that the head could learn.
    """
    embedded = F.embedding(batch.token_ids[:, 1:], embedding).to(batch.taps.dtype)
    places = vocabulary.places(batch.choices)
    losses, hits, counted = [], [], []
    for step, logits in enumerate(trainee.unrolled(embedded, batch.taps, steps)):
        at = slice(1 + step, 1 + step + logits.shape[1])
        counts, place = batch.counts[:, at], places[:, at]
        learned = counts & (place >= 0)
        with torch.no_grad():
            wanted = F.linear(batch.last[:, at][learned], lm_head[vocabulary.target_ids]).float().softmax(-1)
        entropy = -(wanted * logits[learned].float().log_softmax(-1)).sum(-1)
        losses.append(STEP_WEIGHT**step * entropy.sum() / learned.sum().clamp(min=1))
        hits.append((logits.argmax(-1) == place)[learned].sum())
        counted.append(counts.sum())
    return Judgement(torch.stack(losses).sum(), torch.stack(hits), torch.stack(counted))
