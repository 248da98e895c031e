"""An EAGLE-3 head drafts what its definition says, whatever the batch and the history, and never changes the output."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drafted import drafts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_head import NAMINGS, head_tensors, save_tiny_head
from tiny_llama import make_core, make_request, random_prompt, run, save_tiny_llama
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from configs.errors import ConfigError
from configs.job import Draft as DraftSection
from workers.acceptance import ROOT, Tree
from workers.contract import Finished, Request
from workers.drafter import Ask, Draft
from workers.torch_engine import TorchEngine

LAYERS, HEADS, KV_HEADS, DRAFT_VOCAB = 6, 4, 2, 50


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def config(target: Path) -> LlamaConfig:
    return LlamaConfig.from_pretrained(target)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, config: LlamaConfig) -> Path:
    return save_tiny_head(tmp_path_factory.mktemp("head"), config)


def make_eagle(target: Path, head: Path, **engine: object) -> TorchEngine:
    return make_core(target, draft=DraftSection(drafter="eagle3", path=str(head)), **engine)


class Reference:
    """The head by its definition, in full attention over all pairs and without anything clever."""

    def __init__(self, target: Path, *, norm_before_residual: bool = False) -> None:
        self.model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float64)
        config = self.model.config
        self.weights = head_tensors(config, heads=HEADS, kv_heads=KV_HEADS, draft_vocab=DRAFT_VOCAB)
        self.norm_before_residual = norm_before_residual
        self.embedding = self.model.get_input_embeddings().weight

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], length: int) -> list[int]:
        """The chain after `tokens`, the last of which the target has not seen."""
        features = self.features(torch.tensor(tokens[:-1]))
        after, drafts = list(tokens[1:]), list[int]()
        for _ in range(length):
            hidden = self.layer(torch.tensor(after), features)
            logits = F.linear(self.norm(hidden[-1], "norm"), self.weights["lm_head.weight"])
            chosen = int(logits.argmax())
            drafts.append(chosen + int(self.weights["d2t"][chosen]))
            after.append(drafts[-1])
            features = torch.cat([features, hidden[-1:]])
        return drafts

    def tree(self, tokens: Sequence[int], ask: Ask) -> Tree:
        """EAGLE-2's tree, each node's probability from a pass over its whole path."""
        assert ask.tree is not None
        least = ask.tree.min_path_probability
        found: list[tuple[float, tuple[int, ...]]] = []
        front: list[tuple[int, ...]] = [()]
        num_followed, probability = 0, {(): 1.0}
        for _ in range(ask.max_draft):
            level = []
            for path in front:
                law = self.law(tokens, path)
                for token in sorted(law, key=lambda token: -law[token])[: ask.tree.top_k]:
                    if probability[path] * law[token] >= least:
                        level.append((*path, token))
                        probability[level[-1]] = probability[path] * law[token]
            found += [(probability[path], path) for path in level]
            room = min(ask.tree.top_k, ask.max_nodes - num_followed)
            front = sorted(level, key=lambda path: -probability[path])[:room]
            num_followed += len(front)
        kept = [path for _, path in sorted(found, key=lambda each: -each[0])[: ask.max_nodes]]
        return Tree(
            tuple(path[-1] for path in kept), tuple(kept.index(path[:-1]) if path[1:] else ROOT for path in kept)
        )

    @torch.no_grad()
    def law(self, tokens: Sequence[int], path: Sequence[int]) -> dict[int, float]:
        """Of the token after `path`, by target ids."""
        features, after = self.features(torch.tensor(tokens[:-1])), list(tokens[1:])
        hidden = self.layer(torch.tensor(after), features)
        for token in path:
            features, after = torch.cat([features, hidden[-1:]]), [*after, token]
            hidden = self.layer(torch.tensor(after), features)
        shares = F.linear(self.norm(hidden[-1], "norm"), self.weights["lm_head.weight"]).softmax(0)
        return {place + int(self.weights["d2t"][place]): float(share) for place, share in enumerate(shares)}

    @torch.no_grad()
    def features(self, tokens: Tensor) -> Tensor:
        states = self.model(tokens[None], output_hidden_states=True).hidden_states
        taps = torch.cat([states[layer][0] for layer in (2, LAYERS // 2, LAYERS - 3)], dim=1)
        return F.linear(taps, self.weights["fc.weight"])

    def layer(self, tokens: Tensor, features: Tensor) -> Tensor:
        def project(name: str, x: Tensor) -> Tensor:
            return F.linear(x, self.weights[f"midlayer.{name}_proj.weight"])

        normed = self.norm(features, "midlayer.hidden_norm")
        x = torch.cat([self.norm(self.embedding[tokens], "midlayer.input_layernorm"), normed], dim=1)
        q, k, v = (project(f"self_attn.{part}", x).unflatten(1, (-1, 8)).transpose(0, 1) for part in "qkv")
        q, k = self.rotated(q), self.rotated(k)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        hidden = normed if self.norm_before_residual else features
        hidden = hidden + project("self_attn.o", attended.transpose(0, 1).flatten(1))
        inner = self.norm(hidden, "midlayer.post_attention_layernorm")
        return hidden + project("mlp.down", F.silu(project("mlp.gate", inner)) * project("mlp.up", inner))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], 1e-5)

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1]), 500.0 ** -(torch.arange(0, 8, 2) / 8)).double().repeat(1, 2)
        left, right = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-right, left], dim=-1) * angles.sin()


def behind(core: TorchEngine, requests: Sequence[Request]) -> list[tuple[list[int], Draft]]:
    """Tokens and the draft behind them."""
    return [(tokens, draft) for tokens, _, draft in drafts_of(core, requests)]


@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": True}], ids=str)
def test_drafts_are_those_of_the_definition(target: Path, config: LlamaConfig, tmp_path: Path, changes: Any) -> None:
    """In any batch, with prompts in pieces, shared prefixes, K that differ and rounds that reject."""
    core = make_eagle(target, save_tiny_head(tmp_path, config, **changes), max_num_seqs=4, prefill_chunk_tokens=16)
    reference, rng = Reference(target, **changes), random.Random(0)
    prompts = [random_prompt(rng, 3, 60) for _ in range(6)]
    prompts += [prompts[0] + random_prompt(rng), prompts[0] + random_prompt(rng)]
    drafts = drafts_of(
        core,
        [
            make_request(f"row{i}", prompt, k=1 + i % 5, drafter="eagle3", sample=s, temperature=0.7, max_tokens=12)
            for i, prompt in enumerate(prompts)
            for s in range(2)
        ],
    )
    assert len(drafts) > 60
    for tokens, ask, draft in drafts:
        assert draft == Draft(Tree.chain(reference.draft(tokens, ask.max_draft)))


@pytest.mark.parametrize(
    "shape", [{"top_k": 3, "max_nodes": 12}, {"top_k": 8, "max_nodes": 5}, {"min_path_probability": 0.02}]
)
def test_trees_are_those_of_the_definition(target: Path, head: Path, shape: dict[str, Any]) -> None:
    """Each path's probability is that of a chain drafted along it; the likeliest nodes stay."""
    core, reference, rng = make_eagle(target, head, max_num_seqs=4), Reference(target), random.Random(1)
    drafts = drafts_of(
        core,
        [
            make_request(
                f"row{i}", random_prompt(rng), k=1 + i % 4, drafter="eagle3", max_tokens=12, policy={"tree": shape}
            )
            for i in range(6)
        ],
    )
    assert len(drafts) > 40
    for tokens, ask, draft in drafts:
        assert draft.tree == reference.tree(tokens, ask)


def test_chains_and_trees_are_drafted_side_by_side(target: Path, head: Path) -> None:
    core, rng = make_eagle(target, head), random.Random(2)
    requests = [
        make_request(f"row{i}", random_prompt(rng), k=3, drafter="eagle3", policy={"tree": {} if i % 2 else None})
        for i in range(8)
    ]
    alone = [draft for request in requests for draft in drafts_of(core, [request])]
    together = drafts_of(core, requests)
    assert sorted((tokens, draft.tree.tokens, draft.tree.parents) for tokens, _, draft in together) == sorted(
        (tokens, draft.tree.tokens, draft.tree.parents) for tokens, _, draft in alone
    )


PUBLISHED: dict[str, dict[str, Any]] = {naming: {"naming": naming} for naming in NAMINGS} | {
    "pickled": {"pickled": True}
}


@pytest.mark.parametrize("published", PUBLISHED)
def test_every_publishers_form_is_read(
    target: Path, config: LlamaConfig, head: Path, tmp_path: Path, published: str
) -> None:
    requests = [make_request("row", [5, 6, 7, 8], k=3, drafter="eagle3")]

    other = make_eagle(target, save_tiny_head(tmp_path, config, **PUBLISHED[published]))
    assert behind(other, requests) == behind(make_eagle(target, head), requests)


def test_a_pickle_that_runs_code_is_refused(target: Path, config: LlamaConfig, tmp_path: Path) -> None:
    folder = save_tiny_head(tmp_path / "head", config, pickled=True)
    torch.save({"fc.weight": Harmful(tmp_path / "harm")}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model.bin cannot be read"):
        make_eagle(target, folder)
    assert not (tmp_path / "harm").exists()


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def outcome(end: Finished) -> tuple[object, ...]:
    return end.token_ids, end.text, end.finish_reason


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_it_never_changes_the_output(target: Path, head: Path, data: st.DataObject) -> None:
    seed, size = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 10))
    rng = random.Random(seed)
    core = make_eagle(target, head, max_num_seqs=rng.choice([1, 4, 16]), max_batched_tokens=rng.choice([32, 256]))
    prompts = [random_prompt(rng) for _ in range(size)]
    sampling = rng.choice([{}, {"temperature": 0.8}, {"stop": ["b", "ca"], "temperature": 0.8}])

    shapes = [None, {"top_k": 2}, {"top_k": 8, "max_nodes": 30}, {"min_path_probability": 0.05}]

    def requests(ks: Sequence[int], drafters: Sequence[Any]) -> list[Request]:
        return [
            make_request(
                f"row{i}",
                prompts[i],
                k=ks[i],
                drafter=drafters[i],
                seed=seed,
                policy={"tree": rng.choice(shapes), "fallback": rng.choice([None, {"after": 1, "for_rounds": 2}])},
                **sampling,
            )
            for i in range(size)
        ]

    plain = run(core, requests([0] * size, ["ngram"] * size))
    ks = data.draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))
    drafted = run(core, requests(ks, [rng.choice(["eagle3", "ngram"]) for _ in range(size)]))
    assert {name: outcome(end) for name, end in drafted.items()} == {n: outcome(e) for n, e in plain.items()}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another hidden size": ({"hidden_size": 64}, "hidden_size is 64, the target's is 32"),
    "another vocabulary": ({"vocab_size": 32000}, "vocab_size is 32000"),
    "too many draft tokens": ({"draft_vocab_size": 10**6}, "draft_vocab_size is 1000000"),
    "layers that the target lacks": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 13, 28]}},
        "eagle_aux_hidden_state_layer_ids [1, 13, 28] does not name three of the target's 6 layers",
    ),
    "a whole model": ({"architectures": ["LlamaForCausalLM"]}, "is no EAGLE-3 head"),
    "two layers": ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
    "a later variant": ({"norm_before_fc": True}, "norm_before_fc is not implemented"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "other sizes than its tensors": ({"intermediate_size": 96}, "midlayer.mlp.gate_proj.weight is [48, 32]"),
    "no sizes": ({"intermediate_size": None}, "has no intermediate_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_that_does_not_fit_is_refused_by_name(
    target: Path, config: LlamaConfig, tmp_path: Path, case: str
) -> None:
    changes, told = REFUSED[case]
    folder = save_tiny_head(tmp_path, config, **changes)
    with pytest.raises(ConfigError) as refused:
        make_eagle(target, folder)
    assert told in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(("missing", "told"), [("fc.weight", "no tensor 'fc.weight'"), ("d2t", "no tensor 'd2t'")])
def test_a_head_without_a_tensor_is_refused(
    target: Path, config: LlamaConfig, tmp_path: Path, missing: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make_eagle(target, save_tiny_head(tmp_path, config, without=missing))


def test_the_job_may_name_the_layers_that_a_head_reads(target: Path, head: Path) -> None:
    requests = [make_request("row", [5, 6, 7, 8], k=3, drafter="eagle3")]
    as_published = behind(make_eagle(target, head), requests)
    for layers, same in (((2, 3, 3), True), ((1, 2, 5), False)):
        draft = DraftSection(drafter="eagle3", path=str(head), capture_layers=layers)
        assert (behind(make_core(target, draft=draft), requests) == as_published) is same
    with pytest.raises(ConfigError, match=r"draft.capture_layers \[1, 2, 6\]: the target has layers 0 to 5"):
        make_core(target, draft=DraftSection(drafter="eagle3", path=str(head), capture_layers=(1, 2, 6)))
