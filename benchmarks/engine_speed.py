"""Engine speed side by side: the torch engine, transformers and, on request, vLLM's CPU build.

    python benchmarks/engine_speed.py                              all arms but vLLM's, results to benchmarks/results/
    python benchmarks/engine_speed.py --vllm-python VENV/bin/python

Every arm gets the same model, precision, prompts (random tokens of mixed lengths) and output lengths (no early end),
and the whole machine: its processes times threads are the arm's layout. An arm's processes load once and then wait;
runs of all arms are interleaved, so that a slow minute of the machine hits all of them. Our processes get the allocator
settings that a local run gives its workers (huge pages); the others run as they come, or with `--same-allocator` under
the same settings. A run is timed from the first
request sent to the last token received, and counts asked-for tokens only: padding and overshoot are the arm's own loss.

At concurrency C at most C requests are in flight over all processes of the arm, out of `--waves` × C. transformers
batches them in its two ways: `generate` on left-padded batches of requests sorted by prompt length, and its continuous
batching (`generate_batch`). The table compares with the best of them at that concurrency, and beside it with an oracle:
`generate` on batches sorted by output length, which nobody knows before generation and which spares it most of the
waiting for a batch's longest row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from paired import Ratio, paired_ratio

RESULTS = Path(__file__).parent / "results"
OURS = "draftfleet"
PLACES = ("vllm_python", "results")
"""Options that are no conditions: where things lie on this machine says nothing about what was measured."""
Ask = tuple[list[int], int]
"""Prompt tokens, and how many tokens to generate."""
Run = Callable[[list[Ask], int], float]
"""Generate all, so many at a time -> seconds."""


@dataclass(frozen=True)
class Arm:
    """Something to measure: which engine, in how many processes of how many threads."""

    name: str
    engine: str
    processes: int
    threads: int


def arms_of(cores: int) -> list[Arm]:
    """Ours as it is deployed, one engine per core; transformers in both layouts."""
    return [
        Arm(OURS, "draftfleet", cores, 1),
        Arm("transformers-batches-wide", "transformers-batches", 1, cores),
        Arm("transformers-batches-split", "transformers-batches", cores, 1),
        Arm("transformers-oracle-wide", "transformers-oracle", 1, cores),
        Arm("transformers-oracle-split", "transformers-oracle", cores, 1),
        Arm("transformers-continuous-wide", "transformers-continuous", 1, cores),
        Arm("transformers-continuous-split", "transformers-continuous", cores, 1),
        Arm("vllm", "vllm", 1, cores),
    ]


# --- inside an arm's process: one function per engine, which loads and returns how to run -----------------------------


def timed(run: Callable[[list[Ask], int], None]) -> Run:
    def seconds_of(asks: list[Ask], at_once: int) -> float:
        started = time.perf_counter()
        run(asks, at_once)
        return time.perf_counter() - started

    return seconds_of


def draftfleet(folder: str, dtype: str, threads: int, longest: int) -> Run:
    from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
    from workers.contract import Request
    from workers.factory import create_engine

    engine = create_engine(
        Model.model_validate({"path": folder, "dtype": dtype}),
        Draft(drafter="none"),
        Engine(max_num_seqs=64),
        longest_request_tokens=longest,
        threads=threads,
    )
    plain = DraftPolicy(policy="off", k=0, drafter="none")

    async def one(number: int, ask: Ask, gate: asyncio.Semaphore) -> None:
        sampling = Sampling(max_tokens=ask[1], ignore_eos=True)
        request = Request(f"{number}#0", str(number), 0, "default", tuple(ask[0]), sampling, 0, plain)
        async with gate:
            async for _ in engine.generate(request):
                pass

    async def all_of(asks: list[Ask], at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)
        await asyncio.gather(*(one(i, ask, gate) for i, ask in enumerate(asks)))

    loop = asyncio.new_event_loop()
    return timed(lambda asks, at_once: loop.run_until_complete(all_of(asks, at_once)))


def transformers_model(folder: str, dtype: str, threads: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def transformers_batches(folder: str, dtype: str, threads: int, longest: int) -> Run:
    return _in_batches(folder, dtype, threads, order=lambda ask: len(ask[0]))


def transformers_oracle(folder: str, dtype: str, threads: int, longest: int) -> Run:
    return _in_batches(folder, dtype, threads, order=lambda ask: (ask[1], len(ask[0])))


def _in_batches(folder: str, dtype: str, threads: int, *, order: Callable[[Ask], Any]) -> Run:
    import torch

    model = transformers_model(folder, dtype, threads)

    def run(asks: list[Ask], at_once: int) -> None:
        ordered = sorted(asks, key=order)
        for start in range(0, len(ordered), at_once):
            batch = ordered[start : start + at_once]
            width = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max(ask[1] for ask in batch))

    return timed(run)


def transformers_continuous(folder: str, dtype: str, threads: int, longest: int) -> Run:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = transformers_model(folder, dtype, threads)
    settings = GenerationConfig(do_sample=False, max_new_tokens=longest, eos_token_id=None, pad_token_id=0)
    page = 256

    def run(asks: list[Ask], at_once: int) -> float:
        """Its manager polls even if it has nothing to do, so it lives for one run; setting it up is not timed."""
        pages = at_once * (math.ceil(longest / page) + 1)
        sizes = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=512, page_size=page)
        with model.continuous_batching_context_manager(settings, continuous_batching_config=sizes) as manager:
            started, waiting, inside = time.perf_counter(), list(reversed(asks)), 0
            while waiting or inside:
                while waiting and inside < at_once:
                    prompt, length = waiting.pop()
                    manager.add_request(prompt, max_new_tokens=length)
                    inside += 1
                result = manager.get_result(timeout=1)
                inside -= int(result is not None and result.is_finished())
            return time.perf_counter() - started

    return run


def vllm(folder: str, dtype: str, threads: int, longest: int) -> Run:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype=dtype, max_model_len=longest, max_num_seqs=64, disable_log_stats=True).llm_engine
    numbers = iter(range(10**9))

    def run(asks: list[Ask], at_once: int) -> None:
        waiting, inside = list(reversed(asks)), 0
        while waiting or inside:
            while waiting and inside < at_once:
                prompt, length = waiting.pop()
                params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
                engine.add_request(str(next(numbers)), {"prompt_token_ids": prompt}, params)
                inside += 1
            inside -= sum(output.finished for output in engine.step())

    return timed(run)


ENGINES = {
    "draftfleet": draftfleet,
    "transformers-batches": transformers_batches,
    "transformers-oracle": transformers_oracle,
    "transformers-continuous": transformers_continuous,
    "vllm": vllm,
}


def serve(engine: str, folder: str, dtype: str, threads: int, longest: int) -> None:
    """The arm's process: a line of asks in, a line of seconds out. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = ENGINES[engine](folder, dtype, threads, longest)
    run([([5, 6, 7, 8], 4)] * 2, 2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asks, at_once = json.loads(line)
        print(run([(prompt, length) for prompt, length in asks], at_once), file=answers, flush=True)


# --- the driver -------------------------------------------------------------------------------------------------------


class Fleet:
    """An arm's processes, loaded and waiting."""

    def __init__(
        self, arm: Arm, python: str, folder: str, dtype: str, longest: int, log: IO[bytes], *, same_allocator: bool
    ) -> None:
        self.arm = arm
        here = [python, __file__, "--serve", arm.engine, folder, dtype, str(arm.threads), str(longest)]
        environment = os.environ | {"OMP_NUM_THREADS": str(arm.threads), "TOKENIZERS_PARALLELISM": "false"}
        if arm.name == OURS or same_allocator:
            environment |= allocator()
        self._processes = [
            subprocess.Popen(
                here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
            )
            for _ in range(arm.processes)
        ]
        for process in self._processes:
            if _line(process, arm) != "ready":
                raise RuntimeError(f"{arm.name} did not start; see its log {log.name}")

    def run(self, asks: Sequence[Ask], concurrency: int) -> float:
        """Seconds of the process that takes longest; the asks are dealt out by work, longest first."""
        dealt = sorted(asks, key=lambda ask: -(len(ask[0]) + 8 * ask[1]))
        busy = min(self.arm.processes, concurrency)
        for i, process in enumerate(self._processes[:busy]):
            assert process.stdin is not None
            at_once = concurrency // busy + (i < concurrency % busy)
            print(json.dumps([dealt[i::busy], at_once]), file=process.stdin, flush=True)
        return max(float(_line(process, self.arm)) for process in self._processes[:busy])

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


def allocator() -> dict[str, str]:
    """Not at the top: an arm's process may run in an environment that has none of this."""
    from pipeline.local_ray import ALLOCATOR

    return ALLOCATOR


def _line(process: subprocess.Popen[str], arm: Arm) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a process of {arm.name} ended with {process.wait()}; see its log")
    return line


def asks_of(rng: random.Random, count: int, prompt_tokens: Sequence[int], output_tokens: Sequence[int]) -> list[Ask]:
    """Random prompts, so that no arm profits from repetition; lengths uniform between the bounds."""
    return [
        ([rng.randrange(100, 40_000) for _ in range(rng.randint(*prompt_tokens))], rng.randint(*output_tokens))
        for _ in range(count)
    ]


def measure(fleets: Sequence[Fleet], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every arm on the same asks, in a new order each time."""
    runs, rng = [], random.Random(options.seed)
    for repeat in range(options.repeats):
        for concurrency in options.concurrency:
            asks = asks_of(rng, options.waves * concurrency, options.prompt_tokens, options.output_tokens)
            tokens = sum(length for _, length in asks)
            for fleet in rng.sample(list(fleets), len(fleets)):
                seconds = fleet.run(asks, concurrency)
                runs.append(
                    {
                        "arm": fleet.arm.name,
                        "concurrency": concurrency,
                        "repeat": repeat,
                        "requests": len(asks),
                        "output_tokens": tokens,
                        "seconds": seconds,
                        "tokens_per_second": tokens / seconds,
                    }
                )
                print(f"{fleet.arm.name:32} C={concurrency:<3} #{repeat} {tokens / seconds:8.1f} tok/s", flush=True)
    return runs


def summarize(runs: Sequence[dict[str, Any]], concurrency: int) -> dict[str, Any]:
    """Speeds at one concurrency, and ours paired with the best of transformers, its oracle and vLLM."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        if run["concurrency"] == concurrency:
            speeds.setdefault(run["arm"], []).append(run["tokens_per_second"])
    means = {arm: statistics.geometric_mean(values) for arm, values in speeds.items()}
    best = _fastest(means, "transformers-batches", "transformers-continuous")
    return {
        "concurrency": concurrency,
        "tokens_per_second": means,
        "best_transformers": best,
        "ratio_transformers": _ratio(speeds, best),
        "ratio_oracle": _ratio(speeds, _fastest(means, "transformers-oracle")),
        "ratio_vllm": _ratio(speeds, "vllm"),
    }


def _fastest(means: Mapping[str, float], *engines: str) -> str | None:
    """The arm of these engines with the most tokens per second."""
    return max((arm for arm in means if arm.startswith(engines)), key=means.__getitem__, default=None)


def _ratio(speeds: Mapping[str, Sequence[float]], rival: str | None) -> Ratio | None:
    if rival is None or OURS not in speeds or rival not in speeds:
        return None
    return paired_ratio(speeds[OURS], speeds[rival])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: geometric means of tokens per second, ratios with their intervals."""
    lines = [
        "| concurrent | draftfleet | best of transformers | which | ratio | to its oracle | vLLM | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        means, best = row["tokens_per_second"], row["best_transformers"]
        cells = [
            row["concurrency"],
            _whole(means.get(OURS)),
            _whole(means.get(best)),
            (best or "–").removeprefix("transformers-"),
            row["ratio_transformers"] or "–",
            row["ratio_oracle"] or "–",
            _whole(means.get("vllm")),
            row["ratio_vllm"] or "–",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def main() -> None:
    options = parsed_options()
    # Not at the top: an arm's process may run in an environment that has none of this.
    from conditions import conditions

    from workers.models import resolve

    folder = str(resolve(options.model))
    longest = max(options.prompt_tokens) + max(options.output_tokens) + 1
    chosen = [arm for arm in arms_of(os.cpu_count() or 1) if arm.name in options.arms or arm.engine in options.arms]
    about = conditions() | {
        "arms": [asdict(arm) for arm in chosen],
        "options": {name: str(value) for name, value in vars(options).items() if name not in PLACES},
    }
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / f"engine_speed-{about['date'].replace(':', '')}"
    with stem.with_suffix(".log").open("wb") as log, contextlib.ExitStack() as stack:
        fleets = []
        for arm in chosen:
            python = options.vllm_python if arm.engine == "vllm" else sys.executable
            fleet = Fleet(arm, python, folder, options.dtype, longest, log, same_allocator=options.same_allocator)
            fleets.append(fleet)
            stack.callback(fleets[-1].close)
            print(f"{arm.name} is ready", flush=True)
        runs = measure(fleets, options)
    rows = [summarize(runs, concurrency) for concurrency in options.concurrency]
    result = {"conditions": about, "summary": rows, "runs": runs}
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    stem.with_suffix(".md").write_text(f"{table(rows)}\n```json\n{json.dumps(about, indent=1)}\n```\n")
    print(f"\n{table(rows)}\n{stem.with_suffix('.json')}")


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--waves", type=int, default=2, help="requests per place")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=[16, 256])
    parser.add_argument("--output-tokens", type=int, nargs=2, default=[32, 128])
    parser.add_argument("--arms", nargs="+", help="names or engines; default: all, vllm only with its python")
    parser.add_argument("--vllm-python", help="python of a virtual environment that holds vLLM's CPU build")
    parser.add_argument("--same-allocator", action="store_true", help="give every arm the settings of our workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    options = parser.parse_args()
    engines = [name for name in ENGINES if name != "vllm" or options.vllm_python]
    options.arms = options.arms or engines
    if "vllm" in options.arms and not options.vllm_python:
        parser.error("the arm vllm needs --vllm-python")
    return options


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _, _, engine_name, folder_name, dtype_name, num_threads, longest_request = sys.argv
        serve(engine_name, folder_name, dtype_name, int(num_threads), int(longest_request))
    else:
        main()
