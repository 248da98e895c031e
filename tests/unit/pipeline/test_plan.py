"""The plan: every good row once, longest first, the same on any number of processes, adopted by who comes second."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import MemoryStore, Planned, job_over, planned, write_jsonl
from small_chat_model import save_small_chat_model

from configs.errors import ConfigError, RunConflict, SourceError, StorageError
from configs.job import Job
from pipeline.layout import CURRENT, plan_json, plan_part
from pipeline.plan import Plan, PlanProgress, current_fingerprint, load_plan, make_plan, read_planned
from pipeline.planning.planner import shard_bounds
from pipeline.schema import plan_schema
from workers.architecture import read_architecture

TASKS: dict[str, Any] = {
    "code": {"template": "{{ request }}", "sampling": {"max_tokens": 32}},
    "chat": {"template": "{{ request }}", "system": "Be brief.", "sampling": {"max_tokens": 64, "temperature": 0.7}},
}


def mixed_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "id": n,
            "task": rng.choice(["code", "chat"]),
            "request": "word " * rng.randint(1, 60),
            "temperature": rng.choice([None, 0, 0.5]),
            "n": rng.choice([None, 1, 3]),
            "tags": rng.choice([[], None, ["a", "b"]]),
            "meta": rng.choice([{"k": n}, {"k": None, "z": "é"}, None]),
        }
        for n in range(count)
    ]


def mixed_job(path: Path, **sections: Any) -> Job:
    return job_over(path, **({"tasks": TASKS, "shard": {"target_seconds": 10, "tokens_per_second": 100}} | sections))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, chat_model: Path) -> Planned:
    path = write_jsonl(tmp_path_factory.mktemp("mixed") / "in.jsonl", mixed_rows(400))
    return planned(mixed_job(path), chat_model)


def test_every_good_row_is_planned_once_and_carried(mixed: Planned) -> None:
    wanted = {str(row["id"]): row for row in mixed_rows(400)}
    assert Counter(row["_id"] for row in mixed.rows) == Counter(wanted.keys())
    for row in mixed.rows:
        source = wanted[row["_id"]]
        assert row["_task"] == source["task"]
        assert row["tags"] == source["tags"]
        meta = source["meta"]
        assert row["meta"] == (None if meta is None else {"k": None, "z": None, **meta})
        assert row["_source_line"] == source["id"] + 1


def test_a_shard_has_one_task_and_lane_and_its_own_numbers(mixed: Planned) -> None:
    for planned_shard in mixed.plan.shards:
        table = mixed.shard(planned_shard.shard)
        assert table.schema.equals(plan_schema(mixed.plan.carried))
        rows = table.to_pylist()
        assert {row["_shard"] for row in rows} == {planned_shard.shard}
        assert {row["_task"] for row in rows} == {planned_shard.task}
        assert {row["_sampling"]["temperature"] > 0 for row in rows} == {planned_shard.lane == "sampled"}
        assert planned_shard.num_rows == len(rows)
        assert planned_shard.num_samples == sum(row["_sampling"]["n"] for row in rows)
        assert planned_shard.prompt_tokens == sum(len(row["_prompt_token_ids"]) for row in rows)
        assert planned_shard.max_output_tokens == sum(
            row["_sampling"]["n"] * row["_sampling"]["max_tokens"] for row in rows
        )


def assert_longest_first(got: Planned) -> None:
    groups: dict[tuple[str, bool], list[tuple[float, int]]] = {}
    for row in got.rows:
        sampling = row["_sampling"]
        work = sampling["n"] * sampling["max_tokens"] + -(-len(row["_prompt_token_ids"]) // 4)
        groups.setdefault((row["_task"], sampling["temperature"] > 0), []).append((-work, row["_ordinal"]))
    assert list(groups) == [("chat", False), ("chat", True), ("code", False), ("code", True)]
    assert all(keys == sorted(keys) for keys in groups.values())


def test_rows_of_a_task_and_lane_come_longest_first(mixed: Planned) -> None:
    assert_longest_first(mixed)


def test_the_counts_add_up(mixed: Planned) -> None:
    plan = mixed.plan
    assert [(each.task, each.lane) for each in plan.counts] == sorted({(s.task, s.lane) for s in plan.shards})
    assert sum(each.num_rows for each in plan.counts) == plan.num_rows == 400
    assert sum(each.num_samples for each in plan.counts) == plan.num_samples
    assert sum(each.num_shards for each in plan.counts) == len(plan.shards)
    assert sum(plan.token_histogram.values()) == 400
    lengths = [len(row["_prompt_token_ids"]) for row in mixed.rows]
    assert plan.token_histogram == Counter(2 ** (length - 1).bit_length() for length in lengths)
    assert plan.longest_request_tokens == max(
        len(row["_prompt_token_ids"]) + row["_sampling"]["max_tokens"] for row in mixed.rows
    )


def test_what_a_reader_wants_to_see_is_there(mixed: Planned) -> None:
    plan = mixed.plan
    assert set(plan.first_prompts) == {"code", "chat"}
    assert "<|im_start|>system\nBe brief.<|im_end|>" in plan.first_prompts["chat"]
    assert plan.defaults["chat"]["max_tokens"] == 64
    draft = plan.defaults["chat"]["draft"]
    assert (draft["policy"], draft["k"], draft["drafter"]) == ("auto", None, "ngram")
    assert plan.defaults["default"]["max_tokens"] == 256
    assert (plan.run, plan.job["workload"], plan.max_model_len) == ("w-1", "w", 512)
    assert plan.warnings == ()


def test_the_first_prompt_is_of_the_first_row(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"prompt": f"Number {n} " + "long " * (n % 3)} for n in range(5)]
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows)), chat_model)
    assert "Number 0" in got.plan.first_prompts["default"]


def test_a_plan_survives_its_file(mixed: Planned) -> None:
    assert Plan.from_json(mixed.plan.to_json()) == mixed.plan
    assert load_plan(mixed.store) == mixed.plan
    assert json.loads(mixed.store.objects[CURRENT]) == {"plan": mixed.plan.plan_hash}


def test_a_newer_plan_is_refused(mixed: Planned) -> None:
    newer = json.dumps(json.loads(mixed.plan.to_json()) | {"version": 99})
    with pytest.raises(StorageError, match="version 99"):
        Plan.from_json(newer)


def test_a_shard_is_read_by_ranges(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"id": str(n), "prompt": "x", "blob": random.Random(n).randbytes(2000).hex()} for n in range(400)]
    job = job_over(write_jsonl(tmp_path / "in.jsonl", rows), shard={"max_rows": 20})
    got = planned(job, chat_model)
    part = got.store.head(plan_part(got.plan.plan_hash, 0)).size
    got.store.reads.clear()
    assert got.shard(1).num_rows == 20
    assert len(got.store.reads) <= 3
    assert sum(size for _, size in got.store.reads) < part / 4


def test_the_plan_does_not_depend_on_the_number_of_processes(tmp_path: Path, chat_model: Path) -> None:
    rows = mixed_rows(2500)
    path = write_jsonl(tmp_path / "in.jsonl", [*rows, rows[7], {"id": "bad", "task": "none"}, *mixed_rows(10, seed=1)])
    job = mixed_job(path)
    alone, together = (planned(job, chat_model, processes=count) for count in (1, 2))
    assert together.plan == alone.plan
    assert together.plan.num_rows == 2500
    assert together.plan.rejected == {"duplicate_id": 11, "unknown_task": 1}
    assert together.table.equals(alone.table)
    assert together.rejected_table.equals(alone.rejected_table)
    assert_longest_first(together)
    requests = {str(row["id"]): row["request"] for row in rows}
    assert {row["_id"]: row["request"] for row in together.rows} == requests
    for task, prompt in together.plan.first_prompts.items():
        assert next(row["request"] for row in rows if row["task"] == task).strip() + "<|im_end|>" in prompt


def test_an_error_of_the_job_in_another_process_is_told_as_such(tmp_path: Path) -> None:
    model = save_small_chat_model(tmp_path / "model", chat_template=None)
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}] * 2500)
    with pytest.raises(ConfigError, match=r"tasks\.default\.system: the model has no chat template"):
        planned(job_over(path, tasks={"default": {"system": "s"}}), model, processes=2)


def test_another_content_is_another_plan(tmp_path: Path, chat_model: Path) -> None:
    def plan_hash(rows: list[dict[str, Any]], **sections: Any) -> str:
        path = write_jsonl(tmp_path / "in.jsonl", rows)
        return planned(job_over(path, **sections), chat_model).plan.plan_hash

    rows = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}]
    same = plan_hash(rows)
    others = [
        plan_hash([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "z"}]),
        plan_hash([{"id": "a", "prompt": "x"}, {"id": "c", "prompt": "y"}]),
        plan_hash(rows, tasks={"default": {"sampling": {"temperature": 0.5}}}),
        plan_hash(rows, shard={"max_rows": 1}),
        plan_hash(rows, seed=1),
    ]
    assert len({same, *others}) == 6
    assert plan_hash(rows) == same
    assert plan_hash(rows, team="other", sink={"path": "elsewhere"}) == same


def test_a_dry_run_writes_nothing(tmp_path: Path, chat_model: Path) -> None:
    job = job_over(write_jsonl(tmp_path / "in.jsonl", [{"id": "a", "prompt": "x"}]))
    before = sorted(tmp_path.rglob("*"))
    dry = make_plan(job, tmp_path, chat_model, None)
    wet = planned(job, chat_model)
    assert dataclasses.replace(dry, run="w-1") == wet.plan
    assert dry.run == ""
    assert sorted(tmp_path.rglob("*")) == before


SHARDS_OF_ONE = {"shard": {"max_rows": 1}}
"""Another plan of the same job: how much a shard holds is no part of its fingerprint."""


def two_rows(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}])


def test_the_second_planner_adopts_the_first_ones_plan(tmp_path: Path, chat_model: Path) -> None:
    path = two_rows(tmp_path)
    first = planned(job_over(path), chat_model)
    assert make_plan(job_over(path, **SHARDS_OF_ONE), tmp_path, chat_model, first.store) == first.plan
    assert len(first.plan.shards) == 1


class RacingStore(MemoryStore):
    """Another planner puts its plan in the moment before ours becomes the run's."""

    other: dict[str, bytes]

    def put_if_absent(self, key: str, data: bytes) -> Any:
        if key == CURRENT:
            self.objects.update(self.other)
        return super().put_if_absent(key, data)


def test_who_loses_the_race_takes_the_winners_plan(tmp_path: Path, chat_model: Path) -> None:
    path = two_rows(tmp_path)
    winner = planned(job_over(path), chat_model)
    store = RacingStore()
    store.other = winner.store.objects
    plan = make_plan(job_over(path, **SHARDS_OF_ONE), tmp_path, chat_model, store)
    assert plan == winner.plan == load_plan(store)
    assert read_planned(store, plan.plan_hash, plan.shard(0)).column("_id").to_pylist() == ["a", "b"]


@pytest.mark.parametrize("moment", ["before", "at the end"])
def test_the_plan_of_another_job_is_not_adopted(tmp_path: Path, chat_model: Path, moment: str) -> None:
    path = two_rows(tmp_path)
    winner = planned(job_over(path), chat_model)
    store = winner.store if moment == "before" else RacingStore()
    if isinstance(store, RacingStore):
        store.other = winner.store.objects
    other = job_over(path, seed=7, tasks={"default": {"sampling": {"temperature": 0.5}}})
    with pytest.raises(RunConflict) as raised:
        make_plan(other, tmp_path, chat_model, store)
    assert str(raised.value).splitlines() == [
        "/runs/w-1 has been planned with another job:",
        "  seed: 0 -> 7",
        "  tasks.default.sampling.temperature: 0.0 -> 0.5",
        "plan this one as a run of its own: --new-run",
    ]
    assert load_plan(store) == winner.plan


def test_current_is_written_last(tmp_path: Path, chat_model: Path) -> None:
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])), chat_model)
    assert list(got.store.objects)[-2:] == [plan_json(got.plan.plan_hash), CURRENT]


def test_all_rows_bad_is_a_plan_without_shards(tmp_path: Path, chat_model: Path) -> None:
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", [{"id": "a"}, {"id": "b"}])), chat_model)
    assert got.plan.shards == ()
    assert got.plan.rejected == {"missing_prompt": 2}
    assert [row["id"] for row in got.rejected] == ["a", "b"]
    assert got.plan.longest_request_tokens == 0


def test_all_samples_of_a_row_stay_together(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"id": str(n), "prompt": "x", "n": 100} for n in range(3)]
    shard = {"target_seconds": 1, "tokens_per_second": 1}
    got = planned(job_over(write_jsonl(tmp_path / "in.jsonl", rows), shard=shard), chat_model)
    assert [(each.num_rows, each.num_samples) for each in got.plan.shards] == [(1, 100)] * 3


def test_tasks_without_rows_are_warned_of(tmp_path: Path, chat_model: Path) -> None:
    job = job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}]), tasks={"code": {}})
    assert planned(job, chat_model).plan.warnings == (
        "tasks.code has no rows; rows choose a task by source.columns.task (`task`)",
    )


def test_cut_rows_are_counted(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"id": "long", "prompt": "word " * 1000}, {"id": "short", "prompt": "x"}]
    job = job_over(write_jsonl(tmp_path / "in.jsonl", rows), tasks={"default": {"too_long": "cut_end"}})
    got = planned(job, chat_model)
    assert got.plan.num_cut == {"default": 1}
    assert len(got.by_id()["long"]["_prompt_token_ids"]) <= 512 - 256
    assert got.by_id()["long"]["prompt"] == rows[0]["prompt"]


def test_a_prompt_of_a_million_characters_is_cut(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"id": "huge", "prompt": "aa" * 500_000}]
    job = job_over(write_jsonl(tmp_path / "in.jsonl", rows), tasks={"default": {"too_long": "cut_start"}})
    assert len(planned(job, chat_model).rows[0]["_prompt_token_ids"]) <= 256


def test_the_jobs_limit_may_only_shrink_the_models(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "word " * 50}])
    got = planned(job_over(path, model={"max_model_len": 300}), chat_model)
    assert (got.plan.max_model_len, got.plan.rejected) == (300, {"context_length_exceeded": 1})
    with pytest.raises(ConfigError, match=r"model\.max_model_len is 600, but the model's context has 512"):
        planned(job_over(path, model={"max_model_len": 600}), chat_model)


def test_the_plan_allows_what_the_engine_will(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "word " * 50}])
    model = save_small_chat_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "sliding_window": 300}))
    got = planned(job_over(path), model)
    assert (got.plan.max_model_len, got.plan.rejected) == (300, {"context_length_exceeded": 1})
    assert got.plan.max_model_len == read_architecture(model).max_position


def test_a_model_that_no_engine_runs_is_refused_before_any_row_is_read(tmp_path: Path, chat_model: Path) -> None:
    model = save_small_chat_model(tmp_path / "model")
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        planned(job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])), model)


def test_a_cache_that_cannot_hold_the_longest_request_is_refused(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x", "max_tokens": 100}, {"prompt": "x", "max_tokens": 10}])
    longest = planned(job_over(path), chat_model).plan.longest_request_tokens
    assert planned(job_over(path, engine={"kv_cache_tokens": longest}), chat_model).plan.num_rows == 2
    with pytest.raises(
        ConfigError, match=rf"engine\.kv_cache_tokens is {longest - 1}, and the longest row has {longest} "
    ):
        planned(job_over(path, engine={"kv_cache_tokens": longest - 1}), chat_model)


def test_progress_counts_rows_then_parts(tmp_path: Path, chat_model: Path) -> None:
    seen: list[PlanProgress] = []
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}] * 10)
    planned(job_over(path), chat_model, on_progress=seen.append)
    assert list(dict.fromkeys(each.stage for each in seen)) == ["rows", "sort", "write", "done"]
    assert seen[-1].num_rows == 10
    assert seen[0].total_bytes == path.stat().st_size
    assert [(each.parts_written, each.num_parts) for each in seen if each.stage == "write"] == [(1, 1)]


def test_the_fingerprint_of_now_is_the_plans_until_something_changes(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    model = save_small_chat_model(tmp_path / "model")
    job = job_over(path, model={"chat_template": str(template)})
    plan = planned(job, model).plan
    assert current_fingerprint(job, tmp_path, model) == plan.fingerprint
    template.write_text("[{{ messages[0]['content'] }}]")
    changed = current_fingerprint(job, tmp_path, model)
    assert {key for key in changed if changed[key] != plan.fingerprint[key]} == {"model.chat_template_sha256"}
    write_jsonl(path, [{"prompt": "y"}])
    changed = current_fingerprint(job_over(path), tmp_path, model)
    assert f"source.files[{path}]" in {key for key in changed if changed[key] != plan.fingerprint.get(key)}


def test_a_missing_chat_template_file_is_named(tmp_path: Path, chat_model: Path) -> None:
    job = job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}]), model={"chat_template": "gone.jinja"})
    with pytest.raises(ConfigError, match=r"model\.chat_template: cannot read .*gone\.jinja"):
        planned(job, chat_model)


def test_reading_a_plan_needs_neither_tokenizer_nor_sort() -> None:
    heavy = ("torch", "transformers", "duckdb", "ray")
    code = f"import sys, pipeline.plan; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.fixed_dictionaries({}, optional={"x": JSON_VALUES, "y": JSON_VALUES}), min_size=1, max_size=8))
def test_carried_columns_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, chat_model: Path, columns: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("carried") / "in.jsonl"
    rows = [{"id": str(n), "prompt": "x", **each} for n, each in enumerate(columns)]
    got = planned(job_over(write_jsonl(path, rows), shard={"max_rows": 3}), chat_model)
    found = got.by_id()
    for number, row in enumerate(columns):
        for name in set(row) & set(got.plan.carried.names):
            value = found[str(number)][name]
            if name in got.plan.json_columns:
                value = None if value is None else json.loads(value)
            assert without_nulls(value) == without_nulls(row[name])
            assert type(value) is type(row[name])


def without_nulls(value: Any) -> Any:
    """Objects without their null keys: a column gives every object every key."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def test_a_source_that_grows_while_it_is_read_is_refused(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])

    def grow(progress: PlanProgress) -> None:
        if progress.stage == "rows":
            path.write_text(path.read_text() * 2)

    with pytest.raises(SourceError, match=r"in\.jsonl changed while it was read"):
        planned(job_over(path), chat_model, on_progress=grow)


@pytest.mark.parametrize(
    ("sections", "cuda", "work"),
    [
        ({}, False, 60 * 150),
        ({}, True, 60 * 2000),
        ({"engine": {"device": "cpu"}}, True, 60 * 150),
        ({"engine": {"device": "cuda"}}, False, 60 * 2000),
        ({"cluster": {"num_gpus": 1}}, False, 60 * 2000),
        ({"shard": {"target_seconds": 10, "tokens_per_second": 7}}, True, 70),
    ],
)
def test_a_shard_is_a_minute_of_the_engine_that_there_is(
    monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], cuda: bool, work: int
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    assert shard_bounds(job_over("in.jsonl", **sections)).work == work


def test_a_full_disk_is_told_as_such(tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipeline.planning.chunk.write_good", full)
    with pytest.raises(StorageError, match=r"No space left on device; is its disk full\? TMPDIR"):
        planned(job_over(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])), chat_model)


def test_planning_processes_end_with_a_killed_parent(tmp_path: Path, chat_model: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": f"Number {n}", "padding": "x" * 400} for n in range(3000)])
    script = tmp_path / "plan_it.py"
    script.write_text(
        "from pathlib import Path\n"
        "from configs.job import Job\n"
        "from pipeline.plan import make_plan\n"
        "if __name__ == '__main__':\n"
        f"    job = Job(workload='w', source={{'path': {str(path)!r}}})\n"
        f"    model, tell = Path({str(chat_model)!r}), lambda progress: print(progress, flush=True)\n"
        "    make_plan(job, Path('/'), model, None, on_progress=tell, processes=2)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        assert b"rows" in process.stdout.readline()
        children = psutil.Process(process.pid).children()
        assert len(children) >= 2
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.parametrize("damage", [b"", b"{", b"not JSON"])
def test_a_damaged_plan_is_named(tmp_path: Path, chat_model: Path, damage: bytes) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "x"}])
    store = MemoryStore()
    make_plan(job_over(path), tmp_path, chat_model, store)
    plan_key = next(key for key in store.objects if key.endswith("plan.json"))
    for key in (plan_key, CURRENT):
        kept, store.objects[key] = store.objects[key], damage
        with pytest.raises(StorageError, match=f"{key} is damaged"):
            load_plan(store)
        store.objects[key] = kept
