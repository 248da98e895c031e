"""Where a step of the torch engine spends its time.

    python benchmarks/step_profile.py

One engine of one thread on the demo model in bf16, in three situations: one sequence decoding, sixteen decoding, and a
prompt of 256 tokens being prefilled. Steps are timed without a profiler first; then torch's profiler splits them over
operators, and what no operator explains is Python and the dispatch of operators. The profiler itself takes time, so the
parts are shares of its own total, applied to the undisturbed step.

    weights     what one thread needs merely to read the weights once, at the rate at which it sums a large tensor: no
                decoding step can be faster, and all of its tokens share it

Results go to `benchmarks/results/step_profile.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from conditions import conditions, told
from torch.profiler import ProfilerActivity, profile

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from pipeline.local_ray import ALLOCATOR
from workers.contract import Request
from workers.factory import create_core
from workers.torch_engine import TorchEngine

RESULTS = Path(__file__).parent / "results"
MODEL, PROMPT, STEPS, DECODING = "smollm2-135m-instruct", 100, 60, 16
PARTS = {
    "linear": ("mkldnn::", "aten::linear", "aten::addmm", "aten::mm"),
    "attention": ("aten::_scaled_dot_product", "aten::scaled_dot_product", "aten::bmm", "aten::_softmax"),
    "norm, rotary, activation": (
        *(
            "aten::rms_norm",
            "aten::_fused_rms_norm",
            "aten::native_layer_norm",
            "aten::mean",
            "aten::rsqrt",
            "aten::pow",
        ),
        *("aten::roll", "aten::addcmul", "aten::silu", "aten::mul", "aten::add"),
    ),
    "choosing tokens": ("aten::argmax", "aten::max", "aten::topk", "aten::sort", "aten::isfinite", "aten::isnan"),
}
OTHER, PYTHON = "moving data", "Python and dispatch"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the engine does again and again, and what a step of it takes."""

    name: str
    tokens: int
    """Processed by a step."""
    step_ms: float
    parts: dict[str, float]
    """Share of the step, by part."""
    operators: dict[str, float]
    """The same, of the ten costliest operators."""


def engine(threads: int) -> TorchEngine:
    torch.set_num_threads(threads)
    section = Engine(max_num_seqs=DECODING, threads=threads)
    core = create_core(
        Model(path=MODEL, dtype="bfloat16"),
        Draft(drafter="none"),
        section,
        longest_request_tokens=2048,
        threads=threads,
    )
    return core


def request(number: int, prompt_tokens: int, max_tokens: int) -> Request:
    prompt = tuple(100 + (7919 * (number + 1) * place) % 40_000 for place in range(prompt_tokens))
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    policy = DraftPolicy(policy="off", k=0, drafter="none")
    return Request(f"{number}#0", str(number), 0, "default", prompt, sampling, 0, policy)


def decoding(core: TorchEngine, sequences: int) -> Callable[[], None]:
    """Steps in which so many sequences decode, a few tokens apart, and nothing else happens."""
    for number in range(sequences):
        core.add(request(number, PROMPT + 3 * number, 1500))
    is_prefilling = True
    while is_prefilling:
        core.step()
        is_prefilling = any(done.num_prefill_tokens for done in core.drain_rounds())
    return lambda: _discard(core.step())


def prefilling(core: TorchEngine) -> Callable[[], None]:
    """Steps that each prefill a prompt of one chunk and end it with its first token."""
    numbers = iter(range(10**6, 10**7))

    def step() -> None:
        core.add(request(next(numbers), 256, 1))
        core.step()

    return step


def _discard(_: object) -> None:
    return None


def measured(name: str, tokens: int, step: Callable[[], None]) -> Situation:
    for _ in range(5):
        step()
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        for _ in range(STEPS):
            step()
        profiled_us = 1e6 * (time.perf_counter() - started)
    events = {event.key: event.self_cpu_time_total for event in profiler.key_averages() if "::" in event.key}
    parts = dict.fromkeys([*PARTS, OTHER], 0.0)
    for key, spent in events.items():
        parts[part_of(key)] += spent / profiled_us
    parts[PYTHON] = max(0.0, 1.0 - sum(parts.values()))
    costliest = sorted(events.items(), key=lambda item: -item[1])[:10]
    return Situation(
        name=name,
        tokens=tokens,
        step_ms=1e3 * statistics.median(times),
        parts=parts,
        operators={key: spent / profiled_us for key, spent in costliest},
    )


def part_of(operator: str) -> str:
    return next((part for part, names in PARTS.items() if operator.startswith(names)), OTHER)


def weights_ms(core: TorchEngine) -> float:
    """The least time in which one thread reads the weights that a step needs."""
    config = core._model.arch
    layer = config.hidden_size * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer += config.num_heads * config.head_dim * config.hidden_size + 3 * config.hidden_size * config.intermediate_size
    size = 2 * (config.num_layers * layer + config.vocab_size * config.hidden_size)
    tensor = torch.ones(64 * 2**20)
    rates = []
    for _ in range(10):
        started = time.perf_counter()
        tensor.sum()
        rates.append(tensor.nbytes / (time.perf_counter() - started))
    return 1e3 * size / max(rates)


def report(where: dict[str, Any], floor_ms: float, situations: list[Situation]) -> str:
    """Markdown."""
    names = [*PARTS, OTHER, PYTHON]
    lines = [
        "# Where a step of the torch engine spends its time",
        "",
        "Measured by `benchmarks/step_profile.py`, which says what each line means.",
        "",
        *told(where),
        f"- {MODEL} in bfloat16, one thread; reading its weights once takes one thread {floor_ms:.1f} ms",
        "",
        f"| situation | step ms | ms per token | {' | '.join(names)} |",
        f"|---|{'---:|' * (len(names) + 2)}",
    ]
    for each in situations:
        shares = " | ".join(f"{each.step_ms * each.parts[name]:.1f} ms, {each.parts[name]:.0%}" for name in names)
        lines.append(f"| {each.name} | {each.step_ms:.1f} | {each.step_ms / each.tokens:.2f} | {shares} |")
    for each in situations:
        costliest = ", ".join(f"`{key}` {share:.0%}" for key, share in each.operators.items())
        lines += ["", f"{each.name.capitalize()}: {costliest}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    if not ALLOCATOR.items() <= os.environ.items():  # malloc reads its settings when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    where = conditions()
    situations = [
        measured("one sequence decoding", 1, decoding(engine(1), 1)),
        measured(f"{DECODING} sequences decoding", DECODING, decoding(engine(1), DECODING)),
        measured("256 tokens of a prompt", 256, prefilling(engine(1))),
    ]
    floor_ms = weights_ms(engine(1))
    arguments.results.mkdir(parents=True, exist_ok=True)
    found = {"conditions": where, "weights_ms": floor_ms, "situations": [asdict(each) for each in situations]}
    (arguments.results / "step_profile.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.results / "step_profile.md").write_text(report(where, floor_ms, situations))
    print(report(where, floor_ms, situations))


if __name__ == "__main__":
    main()
