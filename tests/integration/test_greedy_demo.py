"""Greedy output of the demo's own fifty prompts equals transformers' generate, token for token, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_llama import make_core, make_request, run
from transformers import AutoModelForCausalLM

from configs.load import load_job
from pipeline.plan import make_plan, read_planned
from pipeline.store.local import LocalStore
from workers.models import fetch

DEMO = Path(__file__).parents[2] / "configs" / "jobs" / "demo.yaml"
LENGTHS = (64, 5, 8, 11, 5, 8, 11, 5, 8, 11)
"""Output tokens, in turn: every tenth prompt runs as long as the demo lets its answers be."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Row id -> prompt token ids, as the plan of the demo job has them."""
    store = LocalStore(str(tmp_path_factory.mktemp("plan")))
    plan = make_plan(load_job(DEMO), Path.cwd(), fetch("smollm2-135m-instruct"), store)
    tables = [read_planned(store, plan.plan_hash, shard) for shard in plan.shards]
    return {
        row["_id"]: row["_prompt_token_ids"]
        for table in tables
        for row in table.select(["_id", "_prompt_token_ids"]).to_pylist()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_prompts_alone_and_sixteen_at_once(prompts: dict[str, list[int]]) -> None:
    """Mixed prompt and output lengths, plain and with n-gram drafts."""
    assert len(prompts) == 50
    lengths = {name: LENGTHS[number % len(LENGTHS)] for number, name in enumerate(prompts)}
    folder = fetch("smollm2-135m-instruct")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = {
        f"{name}#0": tuple(
            model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt)),
                do_sample=False,
                max_new_tokens=lengths[name],
            )[0, len(prompt) :].tolist()
        )
        for name, prompt in prompts.items()
    }
    core = make_core(folder, dtype="float32", max_num_seqs=16, max_batched_tokens=256, prefill_chunk_tokens=96)
    for k in (0, 4):
        asked = [make_request(name, prompt, k=k, max_tokens=lengths[name]) for name, prompt in prompts.items()]
        together = run(core, asked)
        assert {name: end.token_ids for name, end in together.items()} == expected
    for request in asked:
        (end,) = run(core, [request]).values()
        assert end.token_ids == expected[request.request_id]
