"""A Llama small enough to run in float64 in milliseconds, with a tokenizer that splits and joins characters oddly, and
engines on it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from configs.errors import RowError
from configs.job import Acceptance, Draft, Drafter, DraftPolicy, Engine, Model, Sampling
from workers.contract import Finished, Request
from workers.factory import create_core
from workers.torch_engine import TorchEngine

EOS = 0
_CHARACTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?", "Ġ", "Ċ"]
_PIECES = ["ab", "bc", "ca", "Ġa", "the", "ing", "Ã", "©", "Ģ", "â", "ł", "ðŁ"]
"""Words of several characters, then lone bytes of UTF-8 sequences in the byte-level alphabet."""
VOCAB = ["<eos>", *_CHARACTERS, *_PIECES]


def save_tiny_llama(folder: Path, *, seed: int = 0, **overrides: object) -> Path:
    """A random checkpoint: 2 layers, 4 query heads on 2 key heads, about 80 tokens."""
    torch.manual_seed(seed)
    settings: dict[str, object] = {
        "vocab_size": len(VOCAB),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.35,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**(settings | overrides)))
    model.save_pretrained(folder)
    GenerationConfig(eos_token_id=EOS).save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def tiny_tokenizer() -> Tokenizer:
    """Byte-level, without merges: pieces of several characters come only from the model's own choice."""
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(VOCAB)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def make_core(
    folder: Path,
    *,
    dtype: str = "float64",
    kv_cache_dtype: str = "auto",
    draft: Draft | None = None,
    longest: int | None = None,
    measure_share: float = 0.0,
    **engine: object,
) -> TorchEngine:
    """An engine on one thread, without its own; rounds without drafts only if they are asked for."""
    torch.set_num_threads(1)
    section = Engine.model_validate({"device": "cpu", **engine})
    model = Model.model_validate({"path": str(folder), "dtype": dtype, "kv_cache_dtype": kv_cache_dtype})
    drafting = (draft or Draft()).model_copy(update={"measure_share": measure_share})
    core = create_core(model, drafting, section, longest_request_tokens=longest, threads=1)
    return core


def make_request(
    name: str,
    prompt: Sequence[int],
    *,
    k: int = 0,
    drafter: Drafter = "ngram",
    sample: int = 0,
    seed: int = 7,
    deadline_s: float | None = None,
    acceptance: Acceptance = "match",
    acceptance_threshold: float = 0.3,
    policy: Mapping[str, object] | None = None,
    **sampling: object,
) -> Request:
    """One sample; `k` is its draft length, `policy` more of its draft policy."""
    draft = {"policy": "fixed" if k else "off", "k": k, "drafter": drafter, **(policy or {})}
    return Request(
        request_id=f"{name}#{sample}",
        row_id=name,
        sample_index=sample,
        task="default",
        prompt_token_ids=tuple(prompt),
        sampling=Sampling.model_validate({"max_tokens": 24, **sampling}),
        seed=seed,
        draft=DraftPolicy.model_validate(draft),
        acceptance=acceptance,
        acceptance_threshold=acceptance_threshold,
        deadline_s=deadline_s,
    )


def random_prompt(rng: random.Random, low: int = 3, high: int = 30, vocab_size: int = len(VOCAB)) -> list[int]:
    """Tokens without EOS; half of the prompts repeat themselves, so that there is something to look up."""
    tokens = [rng.randrange(1, vocab_size) for _ in range(rng.randint(low, high))]
    return tokens if rng.random() < 0.5 else (tokens[: len(tokens) // 2 + 1] * 3)[: len(tokens)]


def run(core: TorchEngine, requests: Sequence[Request]) -> dict[str, Finished]:
    """All requests to their end, the identity of every sample checked."""
    ends: dict[str, Finished | RowError] = {}
    for request in requests:
        core.add(request)
    while core.has_work:
        ends |= {request_id: event for request_id, event in core.step() if isinstance(event, Finished | RowError)}
    finished = {}
    for request_id, end in ends.items():
        assert isinstance(end, Finished), end
        check_identity(end)
        finished[request_id] = end
    return finished


def check_identity(end: Finished) -> None:
    """Every token is the prefill's, an accepted draft, or a round's own."""
    rounds = sum(count * (1 + accepted) for accepted, count in enumerate(end.speculation.acceptance_histogram))
    assert len(end.token_ids) + end.truncated_tokens == 1 + rounds
