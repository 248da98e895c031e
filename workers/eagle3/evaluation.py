"""How good a head is: acceptance in the real engine on prompts that it has not seen, by task and draft position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from workers.contract import MAX_DRAFT_LEN, Finished, Request
from workers.eagle3.examples import Example
from workers.factory import create_core


@dataclass(slots=True)
class Acceptance:
    """Counts over the rounds of some samples."""

    rounds: int = 0
    accepted: int = 0
    tried_by_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_LEN)
    accepted_by_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_LEN)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round: the accepted drafts and one more."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def rates(self, length: int) -> list[float]:
        """By position: of the drafts that were reached, how many were accepted."""
        pairs = zip(self.accepted_by_pos[:length], self.tried_by_pos[:length], strict=True)
        return [hit / tried if tried else 0.0 for hit, tried in pairs]

    def add(self, end: Finished) -> None:
        stats = end.speculation
        self.rounds += stats.num_rounds
        self.accepted += stats.num_accepted_draft_tokens
        for place in range(MAX_DRAFT_LEN):
            self.tried_by_pos[place] += stats.tried_by_pos[place]
            self.accepted_by_pos[place] += stats.accepted_by_pos[place]


def acceptance(
    model: Model, draft: Draft, engine: Engine, examples: Sequence[Example], *, k: int, max_tokens: int, threads: int
) -> dict[str, Acceptance]:
    """Answer the examples' prompts greedily with drafts of K tokens -> task -> acceptance."""
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
    found: dict[str, Acceptance] = {}
    while core.has_work:
        for request_id, event in core.step():
            if isinstance(event, Finished):
                found.setdefault(task_of[request_id], Acceptance()).add(event)
    return dict(sorted(found.items()))


def over_tasks(found: Mapping[str, Acceptance]) -> float:
    """Mean acceptance length averaged over the tasks, each counting the same."""
    return sum(each.mean_acceptance_length for each in found.values()) / len(found)


def table(found: Mapping[str, Acceptance], k: int) -> list[str]:
    """Lines for a person."""
    lines = [f"  {'task':<12} tokens per round   accepted by position"]
    for task, each in found.items():
        rates = " ".join(f"{rate:4.0%}" for rate in each.rates(k))
        lines.append(f"  {task:<12} {each.mean_acceptance_length:>16.2f}   {rates}")
    return [*lines, f"  {'all, averaged':<12} {over_tasks(found):>15.2f}"]


def is_head(folder: Path) -> bool:
    """Whether a head was published there."""
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()
