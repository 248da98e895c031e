"""How good a drafter is: acceptance in the real engine on prompts that it has not seen, by task and draft position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from workers.contract import Finished, Request, SpeculationStats
from workers.distillation.examples import Example
from workers.factory import create_core


def acceptance(
    model: Model, draft: Draft, engine: Engine, examples: Sequence[Example], *, k: int, max_tokens: int, threads: int
) -> dict[str, SpeculationStats]:
    """Answer the examples' prompts greedily with drafts of K tokens -> task -> what was accepted."""
    longest = max(example.num_prompt for example in examples) + max_tokens
    draft = draft.model_copy(update={"measure_share": 0.0})  # every round is to be judged
    core = create_core(model, draft, engine, longest_request_tokens=longest, threads=threads)
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
        rates = " ".join(f"{rate:4.0%}" for rate in _rates(each, k))
        lines.append(f"  {task:<12} {_mean(each):>16.2f}   {rates}")
    return [*lines, f"  {'all, averaged':<12} {over_tasks(found):>15.2f}"]


def figures(found: Mapping[str, SpeculationStats], k: int) -> dict[str, Any]:
    """The same for a file."""
    tasks = {
        task: {"tokens_per_round": _mean(each), "rates_by_position": _rates(each, k)} for task, each in found.items()
    }
    return {"k": k, "tasks": tasks, "tokens_per_round_over_tasks": over_tasks(found)}


def _rates(stats: SpeculationStats, k: int) -> list[float]:
    """How often each draft position was accepted, of the times that it was tried."""
    pairs = zip(stats.accepted_by_pos[:k], stats.tried_by_pos[:k], strict=True)
    return [accepted / max(tried, 1) for accepted, tried in pairs]


def is_published(folder: Path) -> bool:
    """Whether a head or a model was published there."""
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()
