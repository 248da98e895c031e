"""The answers of a run as tokens: what the target was asked and what it said. A draft head learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs.errors import UsageError
from pipeline.committed_shard import read_shard
from pipeline.layout import data_key
from pipeline.plan import read_planned
from pipeline.run_state import RunView


@dataclass(frozen=True, slots=True)
class Answer:
    """One ok sample."""

    row_id: str
    task: str
    prompt_token_ids: list[int]
    token_ids: list[int]


def answers(view: RunView) -> Iterator[Answer]:
    """Every ok sample of the committed shards, in the plan's order.

    Raises:
        UsageError: the run did not keep the tokens of its output.
    """
    for shard in view.plan.shards:
        if shard.shard not in view.done:
            continue
        committed = read_shard(view.store, data_key(shard.task, shard.shard), with_errors=False).ok
        if "token_ids" not in committed.schema.names or "id" not in committed.schema.names:
            raise UsageError(
                f"{view.plan.run} did not keep the tokens of its output; run the job with --set sink.token_ids=true "
                "(and with id among sink.columns), then train on that run"
            )
        planned = read_planned(view.store, view.plan.plan_hash, shard)
        ids, prompts = (planned.column(name).to_pylist() for name in ("_id", "_prompt_token_ids"))
        prompt_of = dict(zip(ids, prompts, strict=True))
        for row in committed.select(["row_id", "id", "task", "token_ids"]).to_pylist():
            yield Answer(row["row_id"], row["task"], prompt_of[row["id"]], row["token_ids"])
