"""How good a head is: acceptance in the real engine on prompts that it has not seen, by task and draft position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from workers.contract import Finished, Request, SpeculationStats
from workers.eagle3.examples import Example
from workers.factory import create_core


def acceptance(
    model: Model, draft: Draft, engine: Engine, examples: Sequence[Example], *, k: int, max_tokens: int, threads: int
) -> dict[str, SpeculationStats]:
    """Answer the examples' prompts greedily with drafts of K tokens -> task -> what was accepted."""
    longest = max(example.num_prompt for example in examples) + max_tokens
    core, _ = create_core(model, draft, engine, longest_request_tokens=longest, threads=threads)
    policy = DraftPolicy(policy="fixed", k=k, drafter=draft.drafter)
    sampling = Sampling(max_tokens=max_tokens)
    task_of: dict[str, str] = {}
    for number, example in enumerate(examples):
        prompt = tuple(example.token_ids[: example.num_prompt])
        request = Request(f"{number}#0", str(number), 0, example.task, prompt, sampling, 0, policy)
        task_of[request.request_id] = example.task
        core.add(request)
    found: dict[str, SpeculationStats] = {}
    while core.has_work:
        for request_id, event in core.step():
            if isinstance(event, Finished):
                task = task_of[request_id]
                found[task] = found.get(task, SpeculationStats()) + event.speculation
    return dict(sorted(found.items()))


def over_tasks(found: Mapping[str, SpeculationStats]) -> float:
    """Mean acceptance length averaged over the tasks, each counting the same."""
    return sum(_mean(each) for each in found.values()) / len(found)


def _mean(stats: SpeculationStats) -> float:
    """One token per round where nothing was drafted at all."""
    return stats.mean_acceptance_length or 1.0


def table(found: Mapping[str, SpeculationStats], k: int) -> list[str]:
    """Lines for a person."""
    lines = [f"  {'task':<12} tokens per round   accepted by position"]
    for task, each in found.items():
        pairs = zip(each.accepted_by_pos[:k], each.tried_by_pos[:k], strict=True)
        rates = " ".join(f"{accepted / max(tried, 1):4.0%}" for accepted, tried in pairs)
        lines.append(f"  {task:<12} {_mean(each):>16.2f}   {rates}")
    return [*lines, f"  {'all, averaged':<12} {over_tasks(found):>15.2f}"]


def is_head(folder: Path) -> bool:
    """Whether a head was published there."""
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()
