"""One shard through one engine: plan rows in, samples out. A row's failure is its own; only a broken engine raises."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from configs.errors import RowError
from configs.job import DraftPolicy, Job, Sampling, Task
from pipeline.error_rate import ErrorRate
from pipeline.policy import Policy
from pipeline.quarantine import KILLS, Step
from pipeline.usage import Usage
from workers.contract import Engine, EngineInfo, Finished, Request
from workers.draft_length.evidence import Evidence
from workers.draft_length.stratum import Stratum, band_of

KILLER = RowError(
    "engine_killed",
    f"the engine died {KILLS} times with nothing but this row in it; look for the cause in Ray's worker logs "
    "(out of memory, a crash in native code, no round for engine.stall_timeout_s)",
    stage="generate",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of one sample of one row. `row` is its position in the shard."""

    row: int
    request: Request
    result: Finished | RowError

    @property
    def complaint(self) -> str:
        """What went wrong, with the sample's name; empty if nothing did."""
        return f"{self.request.request_id}: {self.result.message}" if isinstance(self.result, RowError) else ""

    @property
    def usage(self) -> Usage:
        if isinstance(self.result, RowError):
            return Usage.of_error(self.result.code, self.result.engine_ns)
        first = self.request.sample_index == 0
        return Usage.of_sample(self.result, prompt_tokens=len(self.request.prompt_token_ids) if first else 0)


def drafting_of(samples: Iterable[Sample], info: EngineInfo) -> Policy:
    """What ok samples taught about drafting. Trees are left out: their hazards are of several drafts at a time."""
    found = Policy()
    for sample in samples:
        result, request = sample.result, sample.request
        if isinstance(result, Finished) and request.draft.tree is None and result.drafter in info.drafters:
            stratum = Stratum(request.task, band_of(request.sampling), result.drafter, request.acceptance)
            evidence = Evidence.of_stats(result.speculation)
            found += Policy({(stratum, info.drafters[result.drafter]): evidence})
    return found


async def generate_shard(
    engine: Engine,
    job: Job,
    rows: pa.Table,
    step: Step | None = None,
    errors: ErrorRate | None = None,
    only: Collection[str] | None = None,
) -> list[Sample]:
    """Every sample of every row, in (row, sample) order.

    All samples are handed to the engine at once; its own window bounds what it holds. `step`: run only its rows; those
    of its killers are errors without any work. `errors`: counts the samples. `only`: ids of those that are wanted.

    Raises:
        EngineError: the engine is broken; nothing of the shard may be committed.
        TooManyErrors: `errors` says so; likewise.
    """
    step = step or Step(tuple(range(rows.num_rows)))

    async def one(row: int, request: Request) -> Sample:
        sample = Sample(row, request, KILLER) if row in step.killers else await _generate(engine, row, request)
        if errors is not None:
            errors.add(samples=1, errors=sample.usage.errors, example=sample.complaint)
        return sample

    wanted = step.killers.union(step.rows)
    tasks = [
        asyncio.ensure_future(one(row, request))
        for row, request in requests(job, rows)
        if row in wanted and (only is None or request.request_id in only)
    ]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _generate(engine: Engine, row: int, request: Request) -> Sample:
    try:
        async for event in engine.generate(request):
            if isinstance(event, Finished):
                return Sample(row, request, event)
    except RowError as error:
        return Sample(row, request, error)
    raise AssertionError(f"{request.request_id} ended without Finished")


def requests(job: Job, rows: pa.Table) -> Iterator[tuple[int, Request]]:
    """The samples of a shard's plan rows, with the row's position."""
    policies: dict[str, tuple[Task, DraftPolicy]] = {}
    names = ("_id", "_task", "_sampling", "_prompt_token_ids")
    for position, (row_id, name, fields, prompt) in enumerate(
        zip(*(rows.column(column).to_pylist() for column in names), strict=True)
    ):
        if name not in policies:
            task = job.task(name) or Task()
            policies[name] = (task, job.draft_policy(task))
        task, policy = policies[name]
        sampling = _sampling(fields)
        for index in range(sampling.n):
            yield (
                position,
                Request(
                    request_id=f"{row_id}#{index}",
                    row_id=row_id,
                    sample_index=index,
                    task=name,
                    prompt_token_ids=tuple(prompt),
                    sampling=sampling,
                    seed=job.seed if sampling.seed is None else sampling.seed,
                    draft=policy,
                    acceptance=task.acceptance,
                    acceptance_threshold=task.acceptance_threshold,
                    deadline_s=task.deadline_s,
                ),
            )


def _sampling(fields: dict[str, Any]) -> Sampling:
    # The plan has checked the values; checking each row again would cost more than the rest of this loop.
    return Sampling.model_construct(
        **{**fields, "stop": tuple(fields["stop"] or ()), "stop_token_ids": tuple(fields["stop_token_ids"] or ())}
    )
