"""The head that is trained is the head that drafts; head and small model learn what they are shown, and go on to the
bit when resumed."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from test_eagle3 import DRAFT_VOCAB, HEADS, KV_HEADS, LAYERS, Reference
from tiny_head import head_tensors
from tiny_llama import VOCAB, random_prompt, save_tiny_llama
from torch import Tensor

from configs.errors import UsageError
from configs.job import Draft
from workers.architecture import read_architecture
from workers.checkpoint import Checkpoint
from workers.distillation.curves import plot
from workers.distillation.examples import Example, Lesson, LessonBatch, batches
from workers.distillation.pupil import Pupil, Target
from workers.distillation.teacher import Teacher
from workers.distillation.trainer import Recipe, StepReport, Trainer
from workers.distillation.training import forget_after, read_history
from workers.draft_model import draft_model_of
from workers.eagle3.head_config import HeadConfig
from workers.eagle3.pupil import HeadPupil
from workers.eagle3.trainee import Trainee
from workers.eagle3.vocabulary import DraftVocabulary
from workers.llama import Llama
from workers.small_model import SmallModelKind, spread

STEPS = 4
CONFIG = HeadConfig(HEADS, KV_HEADS, 8, 48, 1e-5, 500.0, DRAFT_VOCAB, (2, 3, 3), norm_before_residual=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def target(folder: Path) -> Llama:
    checkpoint = Checkpoint(folder, dtype=torch.float64, device=torch.device("cpu"))
    return Llama(read_architecture(folder), checkpoint, max_positions=128, capture=CONFIG.capture)


def lessons_of(target: Llama, examples: list[Example]) -> list[Lesson]:
    return [lesson for _, lesson in sorted(Teacher(target).lessons(examples, 100), key=lambda pair: pair[0])]


@torch.no_grad()
def test_the_unrolled_steps_are_the_chain_that_is_drafted(folder: Path, target: Llama) -> None:
    """Every anchor and every step, by the definition, where each draft is the token that came."""
    reference = Reference(folder)
    weights: dict[str, Any] = head_tensors(
        reference.model.config, heads=HEADS, kv_heads=KV_HEADS, draft_vocab=DRAFT_VOCAB
    )
    trainee = Trainee(CONFIG, 32, 128).double()
    trainee.load_state_dict({name: weight for name, weight in weights.items() if name not in ("d2t", "t2d")})
    rng = random.Random(1)
    examples = [Example("t", random_prompt(rng, 6, 14), 2) for _ in range(3)]
    lessons = lessons_of(target, examples)
    batch = LessonBatch.of(lessons)
    unrolled = list(trainee.unrolled(target.embedding[batch.token_ids[:, 1:]], batch.taps, STEPS))
    for place, lesson in enumerate(lessons):
        after, true = lesson.token_ids[1:], reference.features(lesson.token_ids)
        for anchor in range(len(lesson) - 1):
            features = true[: anchor + 1]
            for step in range(min(STEPS, len(lesson) - 1 - anchor)):
                hidden = reference.layer(after[: anchor + 1 + step], features)[-1:]
                ours = unrolled[step][place, anchor]
                torch.testing.assert_close(ours, trainee.logits(hidden)[0], rtol=1e-4, atol=1e-5)  # float32 angles
                features = torch.cat([features, hidden])


def test_lessons_are_the_targets_states(folder: Path, target: Llama) -> None:
    reference = Reference(folder)
    rng = random.Random(2)
    examples = [Example("t", random_prompt(rng, 3, 40), 2) for _ in range(12)]
    for example, lesson in zip(examples, lessons_of(target, examples), strict=True):
        with torch.no_grad():
            logits = reference.model(torch.tensor([list(example.token_ids)])).logits[0]
        assert lesson.token_ids.tolist() == list(example.token_ids)
        ours = lesson.last @ reference.model.lm_head.weight.T
        torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)  # float32 angles here too
        assert lesson.choices.tolist() == logits.argmax(1).tolist()


def test_the_vocabulary_has_the_commonest_tokens() -> None:
    answers = [[7, 7, 7, 3, 3, 9], [5, 5, 5, 5, 2]]
    vocabulary = DraftVocabulary.most_frequent(answers, 3, 12)
    assert vocabulary.target_ids.tolist() == [3, 5, 7]
    assert (vocabulary.d2t + torch.arange(3)).tolist() == [3, 5, 7]
    assert vocabulary.t2d.nonzero()[:, 0].tolist() == [3, 5, 7]
    assert vocabulary.places(torch.tensor([[3, 4], [7, 11]])).tolist() == [[0, -1], [2, -1]]
    assert vocabulary.coverage(answers) == 9 / 11


def test_batches_hold_everything_once_and_keep_to_the_limit() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 60) for _ in range(200)]
    cut = batches(lengths, 100)
    assert sorted(place for batch in cut for place in batch) == list(range(200))
    assert all(len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= 100 for batch in cut)
    assert sum(len(batch) == 1 for batch in cut) < 60


class Course:
    """Lessons in which the next token follows from the one before, so that there is something to learn."""

    def __init__(self, target: Llama, folder: Path) -> None:
        rng = random.Random(3)
        follower = {token: rng.randrange(1, 40) for token in range(len(VOCAB))}
        examples = []
        for _ in range(60):
            tokens = [rng.randrange(1, 40)]
            while len(tokens) < 24:
                tokens.append(follower[tokens[-1]])
            examples.append(Example("t", tokens, 2))
        self.vocabulary = DraftVocabulary.most_frequent(
            [example.token_ids for example in examples], DRAFT_VOCAB, len(VOCAB)
        )
        self.lessons = [self.sure(lesson, target.embedding) for lesson in lessons_of(target, examples)]
        self.target = Target(folder, target.arch, target.embedding, target.norm, target.embedding)

    def head(self) -> Pupil:
        return HeadPupil(Trainee(CONFIG, 32, 128).double(), self.target, self.vocabulary, 3, 1.0)

    def small_model(self) -> Pupil:
        return SmallModelKind(2).begin(self.target, [], 128)

    @staticmethod
    def sure(lesson: Lesson, lm_head: Tensor) -> Lesson:
        """As if the target had been certain of what came."""
        following = torch.cat([lesson.token_ids[1:], lesson.token_ids[-1:]])
        return Lesson(lesson.token_ids, lesson.num_prompt, lesson.taps, 3 * lm_head[following], following)

    def trainer(self, kind: str, **recipe: Any) -> Trainer:
        torch.manual_seed(0)
        settings = Recipe(**({"epochs": 12, "batch_tokens": 200, "learning_rate": 1e-2} | recipe))
        lengths = [len(lesson) for lesson in self.lessons]
        pupil = self.head() if kind == "head" else self.small_model()
        return Trainer(pupil, self.lessons, lengths, settings, torch.device("cpu"))


@pytest.fixture(scope="module")
def course(target: Llama, folder: Path) -> Course:
    return Course(target, folder)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_training_learns(course: Course, kind: str) -> None:
    reports = list(course.trainer(kind).run())
    first, last = reports[:5], reports[-5:]
    assert sum(report.loss for report in last) < 0.7 * sum(report.loss for report in first)
    assert sum(report.hit_rates[0] for report in last) / 5 > 0.8
    assert sum(report.hit_rates[-1] for report in last) / 5 > 0.6
    assert sum(report.hit_rates[0] for report in first) / 5 < 0.4


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_resumed_training_makes_the_same_weights(course: Course, tmp_path: Path, kind: str) -> None:
    whole = course.trainer(kind, epochs=3)
    expected = [report.loss for report in whole.run()]
    begun = course.trainer(kind, epochs=3)
    half = len(expected) // 2
    losses = [report.loss for report in begun.run(until=lambda: begun.step == half)]
    begun.save(tmp_path / "checkpoint.pt")
    resumed = course.trainer(kind, epochs=3)
    resumed.load(tmp_path / "checkpoint.pt")
    losses += [report.loss for report in resumed.run()]
    assert losses == expected
    for name, weight in whole.pupil.module.state_dict().items():
        assert torch.equal(weight, resumed.pupil.module.state_dict()[name]), name


def test_a_small_model_begins_as_some_layers_of_its_target(course: Course, target: Llama, tmp_path: Path) -> None:
    pupil = course.small_model()
    assert spread(4, 30) == [0, 10, 19, 29]
    told = pupil.publish(tmp_path)
    assert told == {"target_layers": [0, LAYERS - 1]}
    arch = read_architecture(tmp_path)
    assert (arch.num_layers, arch.hidden_size, arch.vocab_size) == (2, 32, len(VOCAB))
    weights = [
        Checkpoint(each, dtype=torch.float64, device=torch.device("cpu")) for each in (course.target.folder, tmp_path)
    ]
    name = "mlp.up_proj.weight"
    theirs, ours = (
        each.tensor(f"model.layers.{layer}.{name}") for each, layer in zip(weights, (LAYERS - 1, 1), strict=True)
    )
    torch.testing.assert_close(ours, theirs, rtol=2**-8, atol=0.0)
    draft = draft_model_of(Draft(drafter="model", model=str(tmp_path)), course.target.folder, target.arch)
    assert draft is not None
    with pytest.raises(UsageError, match=f"--layers {LAYERS}: the target has {LAYERS}"):
        SmallModelKind(LAYERS).begin(course.target, [], 128)


def test_steps_beyond_a_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    forget_after(path, 5)
    assert read_history(path) == []
    reports = [StepReport(step, 9, 1.0 / step, (0.25, 0.5)) for step in range(1, 8)]
    path.write_text("".join(json.dumps(asdict(report)) + "\n" for report in reports), encoding="utf-8")
    forget_after(path, 5)
    assert read_history(path) == reports[:5]


def test_a_training_is_drawn(tmp_path: Path) -> None:
    reports = [StepReport(step, 1000, 5.0 / step, (0.5, 0.25, 0.1)) for step in range(1, 1001)]
    plot(reports, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert drawn.count('id="line2d_') > 4  # axes have some of their own
    plot([], tmp_path / "nothing.svg")
    assert not (tmp_path / "nothing.svg").exists()
