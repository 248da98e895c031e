"""Rejection sampling keeps the target's law in the engine too, with cut-offs, keyed draws and real drafts. The rules
themselves are enumerated in test_acceptance."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import goodness_of_fit
import pytest
import torch
from tiny_head import save_tiny_head
from tiny_llama import make_core, make_request, random_prompt, run, save_tiny_llama
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from configs.job import Acceptance, Draft, Drafter, Sampling
from workers import noise
from workers.acceptance import residual
from workers.contract import Finished
from workers.dense_law import DenseLaw
from workers.keyed_draws import KeyedDraws
from workers.sampling import Row, choose, probabilities
from workers.torch_engine import TorchEngine

PROMPT = [5, 6, 7, 8, 9]
TEMPERATURE, COUNT = 1.5, 1_500
ENOUGH = 1e-6
RULES: tuple[Acceptance, ...] = ("match", "rejection")
TREE = {"tree": {"top_k": 8, "max_nodes": 24}}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


@pytest.fixture(scope="module")
def core(target: Path, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    head = save_tiny_head(tmp_path_factory.mktemp("head"), LlamaConfig.from_pretrained(target))
    near = save_near(target, tmp_path_factory.mktemp("near"))
    draft = Draft(drafter="eagle3", path=str(head), model=str(near))
    return make_core(target, draft=draft, max_num_seqs=64, max_batched_tokens=512)


class Laws:
    """What the target draws after the prompt, by its definition in transformers."""

    def __init__(self, folder: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
        first = self._after(torch.tensor([PROMPT]))[0]
        vocab = torch.arange(len(first))
        pairs = torch.cartesian_prod(vocab, vocab)
        prompts = torch.tensor(PROMPT).expand(len(pairs), -1)
        self.pairs = (first[:, None] * self._after(torch.cat([prompts[: len(vocab)], vocab[:, None]], 1))).flatten()
        """Of the first two tokens [V · V]."""
        self.third = self.pairs @ self._after(torch.cat([prompts, pairs], 1))
        """Of the third [V]."""

    @torch.no_grad()
    def _after(self, tokens: Tensor) -> Tensor:
        return (self._model(tokens).logits[:, -1] / TEMPERATURE).softmax(1)

    def p_value(self, ends: Sequence[Finished]) -> float:
        """The less likely of the two."""
        tokens = torch.tensor([end.token_ids for end in ends])
        pairs = (tokens[:, 0] * len(self.third) + tokens[:, 1]).bincount(minlength=len(self.pairs))
        third = tokens[:, 2].bincount(minlength=len(self.third))
        return min(goodness_of_fit.p_value(pairs, self.pairs), goodness_of_fit.p_value(third, self.third))


@pytest.fixture(scope="module")
def laws(target: Path) -> Laws:
    return Laws(target)


def save_near(target: Path, folder: Path) -> Path:
    """A model that mostly agrees with the target."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float64)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.02
    model.save_pretrained(folder)
    shutil.copy(target / "tokenizer.json", folder)
    return folder


def p_value(counts: Sequence[int], shares: Sequence[float]) -> float:
    return goodness_of_fit.p_value(torch.tensor(counts), torch.tensor(shares, dtype=torch.float64))


def samples(
    core: TorchEngine,
    acceptance: Acceptance,
    drafter: Drafter,
    policy: Mapping[str, object] | None = None,
    count: int = COUNT,
    **more: Any,
) -> list[Finished]:
    """Of the prompt, three tokens each."""
    requests = [
        make_request(
            f"row{i}",
            PROMPT,
            k=2,
            drafter=drafter,
            acceptance=acceptance,
            policy=policy,
            temperature=TEMPERATURE,
            max_tokens=3,
            ignore_eos=True,
            **more,
        )
        for i in range(count)
    ]
    return list(run(core, requests).values())


def num_accepted(ends: Sequence[Finished]) -> int:
    return sum(end.speculation.num_accepted_draft_tokens for end in ends)


@pytest.mark.parametrize("drafter", ["model", "eagle3", "eagle3 tree"])
def test_rejection_sampling_draws_from_the_law_of_the_target(core: TorchEngine, laws: Laws, drafter: str) -> None:
    name, _, tree = drafter.partition(" ")
    ends = samples(core, "rejection", cast(Drafter, name), TREE if tree else None)
    assert num_accepted(ends) > COUNT / 30
    assert laws.p_value(ends) > ENOUGH


def test_the_threshold_does_not_and_says_so(core: TorchEngine, laws: Laws) -> None:
    ends = samples(core, "threshold", "model", acceptance_threshold=0.02)
    assert laws.p_value(ends) < ENOUGH
    assert all(end.is_lossy for end in ends)


def test_rejection_keeps_more_drafts_than_match(core: TorchEngine) -> None:
    """At a high temperature a drawn draft overlaps with the target's law more than the likeliest token has of it."""
    kept = {rule: num_accepted(samples(core, rule, "model")) for rule in RULES}
    assert kept["rejection"] > kept["match"]


def test_drafts_of_the_target_itself_are_all_kept(target: Path) -> None:
    """Cut-offs apply to the drafter's law, too."""
    core = make_core(target, draft=Draft(drafter="model", model=str(target)), max_num_seqs=16)
    for settings in ({"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}):
        ends = samples(core, "rejection", "model", count=100, **settings)
        assert num_accepted(ends) == sum(end.speculation.num_draft_tokens for end in ends)


def test_greedy_requests_match_under_rejection_sampling(core: TorchEngine) -> None:
    rng = random.Random(3)
    prompts = [random_prompt(rng) for _ in range(6)]
    plain, drafted = (
        run(
            core,
            [make_request(f"row{i}", p, k=k, drafter="eagle3", acceptance="rejection") for i, p in enumerate(prompts)],
        )
        for k in (0, 4)
    )
    assert {name: end.token_ids for name, end in drafted.items()} == {n: e.token_ids for n, e in plain.items()}


def test_a_sample_without_drafts_is_not_lossy(core: TorchEngine) -> None:
    (end,) = run(core, [make_request("row", PROMPT, k=0, acceptance="threshold")]).values()
    assert not end.is_lossy


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8}, {"temperature": 1.0, "min_p": 0.1}], ids=str
)
def test_probabilities_are_those_that_tokens_are_chosen_with(settings: dict[str, object]) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    sampling, count = Sampling.model_validate(settings), 20_000
    rows = [Row(sampling, noise.sequence_key(0, f"row{i}", 0), 0, None, ()) for i in range(count)]
    counts = Counter(choose(logits.repeat(count, 1), rows))
    shares = probabilities(logits.clone(), rows[:1])[0].tolist()
    kept = [token for token, share in enumerate(shares) if share]
    assert set(counts) <= set(kept)
    assert p_value([counts[token] for token in kept], [shares[token] for token in kept]) > ENOUGH


def test_the_rest_of_a_dense_law_is_that_of_a_mapping() -> None:
    p, q = {0: 0.5, 1: 0.25, 3: 0.25}, {0: 0.25, 1: 0.5, 2: 0.25}
    dense = residual(DenseLaw(torch.tensor([0.5, 0.25, 0.0, 0.25])), DenseLaw(torch.tensor([0.25, 0.5, 0.25, 0.0])))
    assert dict(dense) == residual(p, q) == dict(residual(DenseLaw(torch.tensor([0.5, 0.25, 0.0, 0.25])), q))
    same = DenseLaw(torch.tensor([0.5, 0.5]))
    assert residual(same, same) is same


def test_keyed_draws_have_the_shares_they_are_given() -> None:
    shares = torch.tensor([0.1, 0.0, 0.6, 0.3])
    draws = [KeyedDraws(noise.sequence_key(0, f"row{i}", 0), i % 7) for i in range(2_000)]
    ends = Counter(each.choose(DenseLaw(shares)) for each in draws)
    assert p_value([ends[0], ends[2], ends[3]], [0.1, 0.6, 0.3]) > ENOUGH
    coins = Counter((each.accept(0.3), each.accept(0.3)) for each in draws)
    joint = {(a, b): (0.3 if a else 0.7) * (0.3 if b else 0.7) for a in (True, False) for b in (True, False)}
    assert p_value([coins[pair] for pair in joint], list(joint.values())) > ENOUGH


def test_refusals_lead_to_plain_rounds_which_are_counted(core: TorchEngine) -> None:
    rng = random.Random(4)
    policy = {"fallback": {"after": 2, "for_rounds": 3}}
    requests = [
        make_request(
            f"row{i}", random_prompt(rng), k=4, drafter="eagle3", ignore_eos=True, max_tokens=40, policy=policy
        )
        for i in range(6)
    ]
    stats = [end.speculation for end in run(core, requests).values()]
    assert all(each.draft_len_histogram[0] >= each.fallback_rounds for each in stats)
    assert sum(each.fallback_rounds for each in stats) > 0
