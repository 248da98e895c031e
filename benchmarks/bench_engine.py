"""The demo model in an engine of one thread, with every drafter, and the prompts that it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer

from configs.job import Draft, DraftPolicy, Engine, Model, Sampling
from workers.contract import Finished, Request, Round, SpeculationStats
from workers.factory import create_core
from workers.models import resolve
from workers.torch_engine import TorchEngine

MODEL = "smollm2-135m-instruct"
ANSWER = 64
"""Tokens of an answer whose time is taken."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of the source's."""

    task: str
    token_ids: tuple[int, ...]


def read_prompts(path: Path) -> list[Prompt]:
    tokenizer = AutoTokenizer.from_pretrained(resolve(MODEL))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Prompt(row["task"], _tokens(tokenizer, row["prompt"])) for row in rows]


def _tokens(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": prompt}]
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    return tuple(found)


class BenchEngine:
    """One engine, in which all ways to draft take turns: two engines differ by the pages that they got."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        head: Path,
        small: str | None = None,
        *,
        dtype: Literal["bfloat16", "float32"] = "bfloat16",
        max_num_seqs: int = 16,
    ) -> None:
        torch.set_num_threads(1)
        self.prompts = prompts
        draft = Draft(drafter="eagle3", path=str(head), model=small, measure_share=0.0)
        longest = max(len(prompt.token_ids) for prompt in prompts) + 128
        self.core: TorchEngine = create_core(
            Model(path=MODEL, dtype=dtype),
            draft,
            Engine(device="cpu", threads=1, max_num_seqs=max_num_seqs),
            longest_request_tokens=longest,
            threads=1,
        )
        self._number = count()

    def answer(
        self, prompts: Sequence[Prompt], policy: DraftPolicy, sampling: Sampling
    ) -> Iterator[tuple[Prompt, Finished]]:
        """Whoever is answered, in the order of their ends."""
        asked: dict[str, Prompt] = {}
        for prompt in prompts:
            name = str(next(self._number))
            asked[f"{name}#0"] = prompt
            self.core.add(Request(f"{name}#0", name, 0, prompt.task, prompt.token_ids, sampling, 0, policy))
        while self.core.has_work:
            for request_id, event in self.core.step():
                if isinstance(event, Finished):
                    yield asked[request_id], event

    def seconds(self, prompts: Sequence[Prompt], policy: DraftPolicy) -> tuple[float, SpeculationStats, list[Round]]:
        """Of answers of a fixed length: from the end of the prefill on, as the rounds tell it."""
        self.core.drain_rounds()
        stats = SpeculationStats()
        for _, end in self.answer(prompts, policy, Sampling(max_tokens=ANSWER, ignore_eos=True)):
            stats += end.speculation
        rounds = self.core.drain_rounds()
        return sum(each.busy_ns for each in rounds if not each.num_prefill_tokens) / 1e9, stats, rounds
