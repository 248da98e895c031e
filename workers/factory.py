"""From a job's sections to a running engine."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from configs.errors import ConfigError
from configs.job import Draft, DraftPolicy, Model, Sampling
from configs.job import Engine as EngineSection
from workers.admission import Admission
from workers.architecture import Architecture, read_architecture
from workers.checkpoint import Checkpoint
from workers.contract import Capabilities, Engine, EngineInfo, Request
from workers.detokenizer import Detokenizer
from workers.device_name import device_name
from workers.draft_length.controller import DraftLengthController
from workers.draft_length.experience import Experience
from workers.draft_model import draft_model_of
from workers.drafter import Drafter
from workers.eagle3.drafter import Eagle3Drafter
from workers.eagle3.head import Eagle3Head
from workers.eagle3.head_checkpoint import HeadCheckpoint, head_files
from workers.eagle3.head_config import HeadConfig, head_config_of
from workers.engine_loop import EngineLoop
from workers.kv_cache import KVCache, LayerShape, TapShape
from workers.llama import Llama
from workers.memory import default_kv_tokens
from workers.model_drafter import ModelDrafter
from workers.models import files_sha256, resolve, weights_sha256
from workers.ngram import NgramDrafter
from workers.pacing import Pacing
from workers.scheduler import Limits
from workers.slots import SlotTable
from workers.torch_engine import TorchEngine

_FIRST_SLOTS = 4
_FIRST_LENGTH = 512
"""The cache grows from here; a known longest request sets the length at once."""
_WINDOW = 4
"""Requests inside the engine per sequence that it runs, so that a freed slot never waits for the event loop."""


Learned = Callable[[EngineInfo], Experience]
"""What is known of drafting with this engine."""


def nothing_learned(_: EngineInfo) -> Experience:
    return Experience()


def create_engine(
    model: Model,
    draft: Draft,
    engine: EngineSection,
    *,
    longest_request_tokens: int | None,
    threads: int,
    learned: Learned = nothing_learned,
) -> Engine:
    """Load and warm up the engine of a job.

    `longest_request_tokens`: prompt + output tokens of the plan's longest request, if known; it shapes the cache.
    `threads`: torch threads, process-wide. `learned`: what earlier work taught about drafting.

    Raises:
        ConfigError: the model or a limit cannot be served.
    """
    torch.set_num_threads(threads)
    device, drafters = device_of(engine), _drafters_sha256(draft)
    info = EngineInfo(
        name="torch",
        version=version("draftfleet"),
        device=device.type,
        dtype=model.dtype,
        model=model.path,
        weights_sha256=weights_sha256(resolve(model.path)),
        draft=_name(draft, drafters),
        threads=threads,
        max_num_seqs=engine.max_num_seqs,
        device_name=device_name(device),
        drafters=drafters,
        versions={name: version(name) for name in ("torch", "transformers", "tokenizers", "safetensors")},
    )
    core = create_core(
        model,
        draft,
        engine,
        longest_request_tokens=longest_request_tokens,
        threads=threads,
        experience=learned(info),
    )
    capabilities = Capabilities(
        samples=True,
        keyed_noise=True,
        per_sequence_k=True,
        histogram=True,
        n=True,
        penalties=True,
        grammar=False,
        max_model_len=core.max_length,
    )
    return EngineLoop(core, info, capabilities, window=_WINDOW * engine.max_num_seqs)


def create_core(
    model: Model,
    draft: Draft,
    engine: EngineSection,
    *,
    longest_request_tokens: int | None,
    threads: int,
    experience: Experience | None = None,
) -> TorchEngine:
    """The engine without its thread, warm."""
    folder = resolve(model.path)
    arch = read_architecture(folder)
    device = device_of(engine)
    max_length = max_length_of(model, arch)
    head_config = head_config_of(draft, arch)
    draft_model = draft_model_of(draft, folder, arch)
    checkpoint = Checkpoint(folder, dtype=dtype_of(model), device=device)
    capture = head_config.capture if head_config else ()
    target = Llama(arch, checkpoint, max_positions=max_length, capture=capture)
    layers = [LayerShape(arch.num_kv_heads, arch.head_dim)] * arch.num_layers
    if head_config:
        layers.append(LayerShape(head_config.num_kv_heads, head_config.head_dim))
    first_draft_layer = len(layers)
    if draft_model:
        layers += [LayerShape(draft_model[1].num_kv_heads, draft_model[1].head_dim)] * draft_model[1].num_layers
    taps = TapShape(len(capture) * arch.hidden_size, target.dtype) if capture else None
    slots = _slots(layers, taps, model, engine, device, max_length, longest_request_tokens, threads)
    detokenizer = Detokenizer.load(folder)
    drafters: list[Drafter] = [NgramDrafter(shortest=draft.ngram_min, longest=draft.ngram_max)]
    if head_config:
        drafters.append(_eagle3(draft, head_config, target, slots.cache, max_length))
    if draft_model:
        own = Checkpoint(draft_model[0], dtype=target.dtype, device=device)
        small = Llama(draft_model[1], own, max_positions=max_length)
        drafters.append(ModelDrafter(small, slots.cache, first_draft_layer, arch.vocab_size))
    by_name = {drafter.name: drafter for drafter in drafters}
    admission = Admission(
        vocab_size=arch.vocab_size,
        max_length=min(max_length, slots.longest_request),
        cache_length=slots.longest_request,
        eos_ids=eos_ids(folder),
        drafters=by_name,
        default_drafter=draft.drafter,
        detokenizer=detokenizer,
        device=device,
    )
    limits = Limits(engine.max_num_seqs, engine.max_batched_tokens, engine.prefill_chunk_tokens)

    def engine_with(controller: DraftLengthController) -> TorchEngine:
        pacing = Pacing(controller, traces=engine.trace_rounds)
        return TorchEngine(target, slots, admission, by_name, limits, pacing)

    # What the first rounds take teaches nothing, so those of the warm-up have a controller of their own.
    _warm_up(engine_with(DraftLengthController(list(by_name), plain_share=0.0)))
    return engine_with(
        DraftLengthController(list(by_name), experience, plain_share=draft.measure_share, seed=secrets.randbits(32))
    )


def _drafters_sha256(draft: Draft) -> dict[str, str]:
    """Drafter -> hash of what it drafts with, for those that a task may choose."""
    found = {"ngram": hashlib.sha256(f"{draft.ngram_min} to {draft.ngram_max}".encode()).hexdigest()}
    if draft.path is not None:
        found["eagle3"] = files_sha256(head_files(Path(draft.path).expanduser()))
    if draft.model is not None:
        found["model"] = weights_sha256(resolve(draft.model))
    return found


def _name(draft: Draft, drafters: Mapping[str, str]) -> str:
    """The job's drafter, and the hashes of what it and the tasks' may load."""
    kinds = {"eagle3": "head", "model": "model"}
    return ", ".join([draft.drafter, *(f"{kinds[name]} {sha}" for name, sha in drafters.items() if name in kinds)])


def _eagle3(draft: Draft, config: HeadConfig, target: Llama, cache: KVCache, max_length: int) -> Eagle3Drafter:
    """The head in the precision of its target; its layer of the cache comes after the target's."""
    assert draft.path is not None
    checkpoint = HeadCheckpoint(Path(draft.path).expanduser(), dtype=target.dtype, device=target.device)
    head = Eagle3Head(config, target.arch, checkpoint, embedding=target.embedding, max_positions=max_length)
    return Eagle3Drafter(head, cache, layer=target.arch.num_layers)


def max_length_of(model: Model, arch: Architecture) -> int:
    """Prompt + output tokens of a sequence.

    Raises:
        ConfigError: the job wants more than the model was made for.
    """
    if model.max_model_len is not None and model.max_model_len > arch.max_position:
        raise ConfigError(
            f"model.max_model_len {model.max_model_len} is above the model's own limit {arch.max_position}; lower it"
        )
    return model.max_model_len or arch.max_position


def eos_ids(folder: Path) -> frozenset[int]:
    """Tokens that end a text: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()


def device_of(engine: EngineSection) -> torch.device:
    """Where an engine runs.

    Raises:
        ConfigError: the job wants CUDA and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if engine.device == "cuda" and not has_cuda:
        raise ConfigError("engine.device is cuda and torch finds no CUDA device; set it to auto or cpu")
    return torch.device("cuda" if has_cuda and engine.device != "cpu" else "cpu")


def kv_dtype_of(model: Model) -> torch.dtype:
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8_e4m3": torch.float8_e4m3fn}
    return dtype_of(model) if model.kv_cache_dtype == "auto" else names[model.kv_cache_dtype]


def dtype_of(model: Model) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}[model.dtype]


def _slots(
    layers: Sequence[LayerShape],
    taps: TapShape | None,
    model: Model,
    engine: EngineSection,
    device: torch.device,
    max_length: int,
    longest: int | None,
    threads: int,
) -> SlotTable:
    dtype = kv_dtype_of(model)
    bytes_per_token = sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * dtype.itemsize
    bytes_per_token += taps.size * taps.dtype.itemsize if taps else 0
    capacity = engine.kv_cache_tokens or default_kv_tokens(bytes_per_token, device=device, threads=threads)
    capacity = min(capacity, engine.max_num_seqs * max_length)
    length = min(longest or _FIRST_LENGTH, max_length, capacity)
    cache = KVCache(
        layers,
        dtype=dtype,
        device=device,
        num_slots=min(_FIRST_SLOTS, engine.max_num_seqs, capacity // length),
        length=length,
        taps=taps,
    )
    return SlotTable(cache, max_slots=engine.max_num_seqs, capacity_tokens=capacity)


def _warm_up(core: TorchEngine) -> None:
    """A short generation, so that the first row does not pay for lazy initialisation."""
    sampling = Sampling(max_tokens=4, ignore_eos=True)
    draft = DraftPolicy(policy="fixed", k=2, drafter=None)
    core.add(Request("warm-up", "warm-up", 0, "default", (0, 0, 0, 0), sampling, 0, draft))
    while core.has_work:
        core.step()
    core.drain_rounds()
