"""What every engine promises (see workers.contract), asked of each in turn."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from engines import ENGINES, EngineUnderTest
from tiny_llama import check_identity

from configs.errors import EngineError, RowError
from configs.job import DraftPolicy, Sampling
from workers.contract import Engine, Event, Finished, Progress, Request, Started


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract-model")


@pytest.fixture(params=ENGINES, ids=[engine.name for engine in ENGINES])
def under_test(request: pytest.FixtureRequest) -> EngineUnderTest:
    engine: EngineUnderTest = request.param
    return engine


@pytest.fixture
def with_engine(
    under_test: EngineUnderTest, model_folder: Path
) -> Callable[[Callable[[Engine], Awaitable[None]]], None]:
    """Runs a coroutine function on a fresh engine, in a fresh event loop, and closes the engine."""

    def run(body: Callable[[Engine], Awaitable[None]]) -> None:
        async def main() -> None:
            async with opened(under_test.make(model_folder)) as engine:
                await asyncio.wait_for(body(engine), timeout=60)

        asyncio.run(main())

    return run


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Engine]:
    try:
        yield engine
    finally:
        await engine.close()


def request_of(
    under_test: EngineUnderTest,
    name: str = "row",
    *,
    sample: int = 0,
    k: int = 3,
    deadline_s: float | None = None,
    prompt: tuple[int, ...] | None = None,
    **sampling: Any,
) -> Request:
    return Request(
        request_id=f"{name}#{sample}",
        row_id=name,
        sample_index=sample,
        task="default",
        prompt_token_ids=under_test.prompt if prompt is None else prompt,
        sampling=Sampling(**{"max_tokens": 16, "ignore_eos": True, **sampling}),
        seed=11,
        draft=DraftPolicy(policy="fixed", k=k, drafter=None),
        deadline_s=deadline_s,
    )


async def events_of(engine: Engine, request: Request) -> list[Event]:
    return [event async for event in engine.generate(request)]


async def end_of(engine: Engine, request: Request) -> Finished:
    end = (await events_of(engine, request))[-1]
    assert isinstance(end, Finished)
    check_identity(end)
    return end


Run = Callable[[Callable[[Engine], Coroutine[Any, Any, None]]], None]


def test_started_comes_first_finished_last_progress_between(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        started, *between, finished = await events_of(engine, request_of(under_test))
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        assert (
            sum(event.num_tokens for event in between if isinstance(event, Progress)) == len(finished.token_ids) == 16
        )
        assert finished.finish_reason == "length"
        assert 0 <= finished.queue_s <= finished.ttft_s <= finished.total_s

    with_engine(body)


def test_more_requests_than_the_window_all_finish(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        requests = [request_of(under_test, f"row{i}", k=i % 4, max_tokens=4 + i % 9) for i in range(60)]
        ends = await asyncio.gather(*(end_of(engine, request) for request in requests))
        assert [len(end.token_ids) for end in ends] == [request.sampling.max_tokens for request in requests]

    with_engine(body)


def test_busy_time_is_handed_out_once_and_whole(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        ends = await asyncio.gather(*(end_of(engine, request_of(under_test, f"row{i}")) for i in range(10)))
        rounds = engine.drain_rounds()
        assert sum(entry.busy_ns for entry in rounds) == sum(end.engine_ns for end in ends)
        assert sum(entry.num_output_tokens for entry in rounds) == sum(len(end.token_ids) for end in ends)
        assert engine.drain_rounds() == []

    with_engine(body)


def test_a_sample_does_not_depend_on_its_company(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        if not (engine.capabilities().keyed_noise and under_test.exact):
            pytest.skip("this engine promises it up to floating point only")
        samples = [request_of(under_test, sample=i, temperature=1.0) for i in range(4)]
        together = await asyncio.gather(*(end_of(engine, request) for request in samples))
        alone = [await end_of(engine, request) for request in reversed(samples)]
        assert [end.token_ids for end in together] == [end.token_ids for end in reversed(alone)]
        assert len({end.token_ids for end in together}) == 4

    with_engine(body)


def test_speculation_does_not_change_the_output(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        for temperature in (0.0, 0.8) if engine.capabilities().samples else (0.0,):
            lengths = range(9) if engine.capabilities().per_sequence_k else range(1)
            ends = [await end_of(engine, request_of(under_test, k=k, temperature=temperature)) for k in lengths]
            assert len({(end.token_ids, end.text) for end in ends}) == 1
            assert ends[0].speculation.num_draft_tokens == 0

    with_engine(body)


def test_a_row_that_cannot_be_served_fails_alone(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        too_long = request_of(under_test, "long", max_tokens=engine.capabilities().max_model_len)
        long, fine = await asyncio.gather(
            end_of(engine, too_long), end_of(engine, request_of(under_test, "fine")), return_exceptions=True
        )
        assert isinstance(long, RowError)
        assert (long.stage, long.code) == ("engine", "context_length_exceeded")
        assert isinstance(fine, Finished)
        assert pickle.loads(pickle.dumps(long)).code == long.code

    with_engine(body)


def test_an_abort_ends_its_request_only(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        requests = [request_of(under_test, f"row{i}", max_tokens=80) for i in range(40)]
        tasks = [asyncio.create_task(end_of(engine, request)) for request in requests]
        await asyncio.sleep(0.02)
        aborted = [requests[0], requests[39]]
        for request in aborted:
            engine.abort(request.request_id)
        engine.abort("no such request")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for request, end in zip(requests, ends, strict=True):
            if isinstance(end, RowError):
                assert request in aborted
                assert end.code == "aborted"
        assert isinstance(ends[39], RowError), "it was still waiting"

    with_engine(body)


def test_a_caller_that_leaves_frees_its_place(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        leaving = [
            asyncio.create_task(end_of(engine, request_of(under_test, f"gone{i}", max_tokens=80))) for i in range(8)
        ]
        await asyncio.sleep(0.02)
        for task in leaving:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert isinstance(await end_of(engine, request_of(under_test)), Finished)

    with_engine(body)


def test_a_deadline_ends_a_row(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(RowError) as caught:
            await end_of(engine, request_of(under_test, max_tokens=80, k=0, deadline_s=1e-6))
        assert caught.value.code == "timeout"

    with_engine(body)


def test_close_fails_what_is_open_and_what_comes_later(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        tasks = [
            asyncio.create_task(end_of(engine, request_of(under_test, f"row{i}", max_tokens=80))) for i in range(40)
        ]
        await asyncio.sleep(0.01)
        await asyncio.wait_for(engine.close(), timeout=30)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(end, EngineError) for end in ends)
        assert all(isinstance(end, EngineError | Finished) for end in ends)
        with pytest.raises(EngineError):
            await end_of(engine, request_of(under_test))

    with_engine(body)


def test_stop_strings_are_cut_and_token_ids_are_kept(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        whole = await end_of(engine, request_of(under_test))
        stop = whole.text[4:7]
        end = await end_of(engine, request_of(under_test, stop=(stop,)))
        assert end.finish_reason == "stop"
        assert end.text == whole.text[: whole.text.index(stop)]
        assert end.token_ids == whole.token_ids[: len(end.token_ids)]

    with_engine(body)


def test_info_and_capabilities_are_filled(under_test: EngineUnderTest, with_engine: Run) -> None:
    async def body(engine: Engine) -> None:
        info, capabilities = engine.info(), engine.capabilities()
        assert len(info.weights_sha256) == 64
        assert info.name == under_test.name
        assert info.versions
        assert capabilities.max_model_len > 0

    with_engine(body)
