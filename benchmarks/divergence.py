"""How often speculation, or merely another batch, makes a token another one, and why.

    python benchmarks/divergence.py PROMPTS [--head HEAD] [--small MODEL]

In exact arithmetic no draft changes a token. In floating point a row's logits depend in their last bits on how many
rows a pass has, so where two tokens are nearly equal the other one may win. The reference is plain decoding, one
sequence at a time; the control is plain decoding of eight at once, which has the same effect without any draft.

    rate     first divergences per token compared (what follows one is another text and is not compared)
    largest  gap between the two tokens at a divergence, in float64: of logits, for sampled ones divided by T and with
             their noise. A divergence with a gap beyond what rounding makes of logits would be a bug

Results go to `benchmarks/results/divergence.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from bench_engine import MODEL, Prompt, read_prompts
from conditions import conditions, told

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from workers import noise
from workers.contract import Finished, Request
from workers.factory import create_core
from workers.torch_engine import TorchEngine

RESULTS = Path(__file__).parent / "results"
ANSWER, BATCH = 64, 8
TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
"""Largest gap that rounding explains, in logits."""
Tokens = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode."""

    name: str
    policy: DraftPolicy
    at_once: int = BATCH


@dataclass(slots=True)
class Found:
    """One arm against the reference."""

    dtype: str
    temperature: float
    arm: str
    compared: int
    divergences: int
    largest_gap: float


def arms_of(head: bool, small: bool) -> list[Arm]:
    def fixed(**more: Any) -> DraftPolicy:
        return DraftPolicy.model_validate({"policy": "fixed", "k": 4, **more})

    tree = {"top_k": 4, "max_nodes": 12}
    return [
        Arm(f"plain, {BATCH} at once (control)", DraftPolicy(policy="off", drafter="none")),
        Arm("n-gram, K 4", fixed(drafter="ngram")),
        *([Arm("EAGLE-3, K 4", fixed(drafter="eagle3"))] if head else []),
        *([Arm("EAGLE-3 tree, K 4", fixed(drafter="eagle3", tree=tree))] if head else []),
        *([Arm("draft model, K 4", fixed(drafter="model"))] if small else []),
    ]


def core_of(dtype: str, draft: Draft, at_once: int) -> TorchEngine:
    torch.set_num_threads(1)
    model = Model.model_validate({"path": MODEL, "dtype": dtype})
    return create_core(model, draft, Engine(device="cpu", max_num_seqs=at_once), longest_request_tokens=None, threads=1)


def answers(core: TorchEngine, prompts: Sequence[Prompt], policy: DraftPolicy, temperature: float) -> Tokens:
    sampling = Sampling(temperature=temperature, max_tokens=ANSWER, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        core.add(Request(str(number), str(number), 0, prompt.task, prompt.token_ids, sampling, 0, policy))
    ends: Tokens = {}
    while core.has_work:
        ends |= {name: event.token_ids for name, event in core.step() if isinstance(event, Finished)}
    return ends


class Judge:
    """The target in float64."""

    def __init__(self) -> None:
        self._core = core_of("float64", Draft(drafter="none"), 1)

    def gap(self, prompt: Prompt, number: str, before: Sequence[int], tokens: tuple[int, int], heat: float) -> float:
        """Between two tokens after the prompt and what came before."""
        logits = self._logits([*prompt.token_ids, *before])[list(tokens)]
        if heat:
            key = torch.tensor([noise.sequence_key(0, number, 0)], dtype=torch.int32)
            words = noise.row_words(key, torch.tensor([len(before)], dtype=torch.int32))
            logits = logits / heat + noise.gumbels(noise.token_words(torch.tensor(tokens)), words)
        return float((logits[0] - logits[1]).abs())

    @torch.inference_mode()
    def _logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[V] by a pass of the engine's own model over all of them."""
        seen: list[torch.Tensor] = []
        model = self._core._model
        of_hidden = model.logits
        model.logits = lambda hidden: seen.append(of_hidden(hidden)) or seen[-1].clone()  # type: ignore[method-assign]
        try:
            policy = DraftPolicy(policy="off", drafter="none")
            self._core.add(Request("judge", "judge", 0, "", tuple(tokens), Sampling(max_tokens=1), 0, policy))
            while self._core.has_work:
                self._core.step()
        finally:
            model.logits = of_hidden  # type: ignore[method-assign]
        return seen[-1][-1]


def compare(
    judge: Judge, prompts: Sequence[Prompt], ours: Tokens, theirs: Tokens, dtype: str, heat: float, arm: str
) -> Found:
    found = Found(dtype, heat, arm, 0, 0, 0.0)
    for number, prompt in enumerate(prompts):
        pairs = list(zip(ours[str(number)], theirs[str(number)], strict=True))
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        found.compared += len(pairs) if at is None else at + 1
        if at is not None:
            before = theirs[str(number)][:at]
            found.divergences += 1
            found.largest_gap = max(found.largest_gap, judge.gap(prompt, str(number), before, pairs[at], heat))
    return found


def report(where: dict[str, Any], found: Sequence[Found]) -> str:
    """Markdown."""
    lines = ["# Divergences", "", "Measured by `benchmarks/divergence.py`, which says how.", "", *told(where)]
    lines += [f"- {where['prompts']} prompts, {ANSWER} tokens each", ""]
    lines += ["| dtype | T | arm | tokens compared | divergences | per token | largest gap in float64 |"]
    lines += ["|---|---:|---|---:|---:|---:|---:|"]
    for each in found:
        rate = each.divergences / each.compared
        counts = f"{each.compared:,} | {each.divergences} | {rate:.1e} | {each.largest_gap:.1e}"
        lines.append(f"| {each.dtype} | {each.temperature:g} | {each.arm} | {counts} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--small")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts)[: arguments.limit]
    head = None if arguments.head is None else str(arguments.head)
    draft = Draft(drafter="eagle3" if head else "ngram", path=head, model=arguments.small, measure_share=0.0)
    where = conditions() | {"prompts": len(prompts)}
    judge, found = Judge(), list[Found]()
    for dtype in TOLERANCE:
        alone, together = core_of(dtype, draft, 1), core_of(dtype, draft, BATCH)
        for heat in (0.0, 0.8):
            reference = answers(alone, prompts, DraftPolicy(policy="off", drafter="none"), heat)
            for arm in arms_of(head is not None, arguments.small is not None):
                ours = answers(together, prompts, arm.policy, heat)
                found.append(compare(judge, prompts, ours, reference, dtype, heat, arm.name))
                print(found[-1], flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    whole = {"conditions": where, "found": [asdict(each) for each in found]}
    (arguments.results / "divergence.json").write_text(json.dumps(whole, indent=1) + "\n")
    (arguments.results / "divergence.md").write_text(report(where, found))
    print(report(where, found))
    unexplained = [each for each in found if each.largest_gap > TOLERANCE[each.dtype]]
    assert not unexplained, f"divergences that rounding does not explain: {unexplained}"


if __name__ == "__main__":
    main()
