"""Does another engine read our draft head, and accept as much of what it drafts?

    python benchmarks/head_in_vllm.py PROMPTS --head HEAD --vllm-python VENV/bin/python [--limit 40]

The same prompts, greedily, in float32, with chains of four: in the torch engine and in vLLM's CPU build, each counting
rounds and accepted drafts by position. They would be the same number for number, but for near-ties and the last round
of an answer, where vLLM drafts beyond the end.

Results go to `benchmarks/results/head_in_vllm.{json,md}`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
K, ANSWER = 4, 64
MARK = "result: "
"""Begins the one line that is ours among what vLLM prints."""


def in_vllm(asked: dict[str, Any]) -> dict[str, Any]:
    """Run by vLLM's own Python, which has nothing of ours."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams, TokensPrompt

    draft = {"method": "eagle3", "model": asked["head"], "num_speculative_tokens": K}
    llm = LLM(
        asked["target"],
        dtype="float32",
        max_model_len=asked["longest"],
        max_num_seqs=8,
        speculative_config=draft,
        disable_log_stats=False,
    )
    prompts = [TokensPrompt(prompt_token_ids=tokens) for tokens in asked["prompts"]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True))
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    return {
        "rounds": metrics["vllm:spec_decode_num_drafts"].value,
        "accepted_by_pos": metrics["vllm:spec_decode_num_accepted_tokens_per_pos"].values,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
    }


def in_ours(prompts: list[list[int]], head: Path) -> dict[str, Any]:
    from speculation import MODEL

    from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
    from workers.contract import Finished, Request, SpeculationStats
    from workers.factory import create_core

    draft = Draft(drafter="eagle3", path=str(head), measure_share=0.0)
    model, engine = Model(path=MODEL, dtype="float32"), Engine(device="cpu", max_num_seqs=8)
    core = create_core(model, draft, engine, longest_request_tokens=None, threads=len(os.sched_getaffinity(0)))
    sampling = Sampling(max_tokens=ANSWER, ignore_eos=True)
    policy = DraftPolicy(policy="fixed", k=K, drafter="eagle3")
    for number, prompt in enumerate(prompts):
        core.add(Request(str(number), str(number), 0, "", tuple(prompt), sampling, 0, policy))
    stats, tokens = SpeculationStats(), dict[str, list[int]]()
    while core.has_work:
        for name, event in core.step():
            if isinstance(event, Finished):
                stats += event.speculation
                tokens[name] = list(event.token_ids)
    return {
        "rounds": stats.num_spec_steps,
        "accepted_by_pos": stats.accepted_by_pos[:K],
        "tokens": [tokens[str(number)] for number in range(len(prompts))],
    }


def report(where: dict[str, Any], found: dict[str, dict[str, Any]], same: int) -> str:
    """Markdown."""
    from conditions import told

    lines = ["# Our draft head in another engine", "", "Measured by `benchmarks/head_in_vllm.py`, which says how.", ""]
    lines += [*told(where), f"- {where['prompts']} prompts, {ANSWER} tokens each; {same} answers are the same", ""]
    lines += ["| engine | rounds | tokens per round | accepted of all rounds, by position |", "|---|---:|---:|---|"]
    for name, each in found.items():
        length = 1 + sum(each["accepted_by_pos"]) / each["rounds"]
        rates = " ".join(f"{accepted / each['rounds']:.1%}" for accepted in each["accepted_by_pos"])
        lines.append(f"| {name} | {each['rounds']:,} | {length:.3f} | {rates} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--vllm-python", type=Path, required=True, help="of a virtual environment that has it")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    from conditions import conditions
    from speculation import MODEL, read_prompts

    from workers.models import resolve

    prompts = [list(prompt.token_ids) for prompt in read_prompts(arguments.prompts)[: arguments.limit]]
    where = conditions() | {"prompts": len(prompts)}
    asked = {"target": str(resolve(MODEL)), "head": str(arguments.head.resolve()), "prompts": prompts}
    asked["longest"] = max(map(len, prompts)) + ANSWER + K
    command = [str(arguments.vllm_python), __file__, "--in-vllm"]
    said = subprocess.run(command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True).stdout
    (theirs,) = (line.removeprefix(MARK) for line in said.splitlines() if line.startswith(MARK))
    found = {"draftfleet": in_ours(prompts, arguments.head), "vLLM": json.loads(theirs)}
    pairs = zip(found["draftfleet"].pop("tokens"), found["vLLM"].pop("tokens"), strict=True)
    same = sum(one == other for one, other in pairs)
    arguments.results.mkdir(parents=True, exist_ok=True)
    whole = {"conditions": where, "same_answers": same, **found}
    (arguments.results / "head_in_vllm.json").write_text(json.dumps(whole, indent=1) + "\n")
    (arguments.results / "head_in_vllm.md").write_text(report(where, found, same))
    print(report(where, found, same))


if __name__ == "__main__":
    if sys.argv[1:] == ["--in-vllm"]:
        print(f"\n{MARK}{json.dumps(in_vllm(json.load(sys.stdin)))}", flush=True)
    else:
        main()
