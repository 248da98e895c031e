"""A run's dataset in other formats: the right lines, the same bytes each time, nothing half-written."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from s3_server import S3Bucket

from configs.errors import StorageError, UsageError
from configs.job import Job
from pipeline.commit import commit_shard, parquet_bytes
from pipeline.export.dataset import ExportFormat, export
from pipeline.export.json_line import json_line
from pipeline.fault_points import FaultPoints
from pipeline.footer import ShardFooter
from pipeline.layout import CURRENT, REJECTED_KEY, plan_json
from pipeline.plan import Plan, PlannedShard
from pipeline.schema import error_schema, output_schema
from pipeline.store.base import Store
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store
from pipeline.usage import Usage

FORMATS: tuple[ExportFormat, ...] = ("openai-jsonl", "jsonl", "csv", "sft-jsonl")
JOB = {"workload": "demo", "source": {"path": "rows.jsonl"}, "tasks": {"chat": {}, "code": {}}}
PROMPTS = pa.schema([("prompt", pa.string())])


@dataclass
class Run:
    """A run written by hand: a plan, and the shards that `add` commits."""

    store: Store
    job: dict[str, Any] = field(default_factory=dict)
    carried: pa.Schema = PROMPTS
    json_columns: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ("rows.jsonl",)
    shards: int = 0

    def planned(self) -> Run:
        job = Job.model_validate({**JOB, **self.job})
        plan = Plan(
            plan_hash="p1",
            run="demo-1",
            job=job.model_dump(mode="json"),
            fingerprint={},
            sources=[{"path": path, "size": 1, "etag": "e"} for path in self.sources],
            shards=tuple(
                PlannedShard(n, task, "greedy", 0, n, 1, 1, 1, 1, 1) for n, task in enumerate(job.tasks or ["default"])
            ),
            carried=self.carried,
            json_columns=list(self.json_columns),
            counts=(),
            rejected={},
            problems=(),
            num_cut={},
            token_histogram={},
            first_prompts={},
            defaults={},
            warnings=(),
            longest_request_tokens=0,
            max_model_len=100,
        )
        self.store.put(plan_json("p1"), plan.to_json().encode())
        self.store.put(CURRENT, b'{"plan": "p1"}')
        return self

    def add(self, task: str, ok: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]] = ()) -> Run:
        """Commit one shard. Rows give what matters to the test; the rest is filled in."""
        footer = ShardFooter(
            *("demo-1", 1, "i1", self.shards, task, "greedy", "p1", "0123456789abcdef", {}),
            *("smollm2-135m-instruct", "w", "none", "g", 0, len(ok), Usage(), 100.0, 1_790_000_000.5),
        )
        schema = output_schema(self.carried, self.columns)
        ok_rows = [{**OK, "task": task, "source_line": n, **row} for n, row in enumerate(ok, 1)]
        error_rows = [{**FAILED, "task": task, "source_line": n, **row} for n, row in enumerate(errors, 101)]
        ok_table = pa.Table.from_pylist([identified(row) for row in ok_rows], schema)
        error_table = pa.Table.from_pylist([identified(row) for row in error_rows], error_schema(self.carried))
        commit_shard(self.store, footer, ok_table, error_table, "zstd", FaultPoints())
        self.shards += 1
        return self

    def reject(self, *rows: Mapping[str, Any]) -> Run:
        table = pa.Table.from_pylist([{**FAILED, "task": None, **row} for row in rows], error_schema(self.carried))
        self.store.put(REJECTED_KEY, parquet_bytes(table, "zstd"))
        return self


OK: dict[str, Any] = {
    "sample_index": 0,
    "text": "an answer",
    "finish_reason": "stop",
    "prompt_tokens": 7,
    "output_tokens": 3,
    "truncated_tokens": 0,
    "text_repaired": False,
    "empty_output": False,
    "lossy": False,
    "source_file": "rows.jsonl",
}
FAILED: dict[str, Any] = {
    "error": {"stage": "engine", "code": "timeout", "message": "took too long", "retryable": True, "attempt": 1},
    "source_file": "rows.jsonl",
    "source_line": 9,
}


def identified(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"row_id": f"{row['id']}#{row.get('sample_index', 0)}", "sample_index": 0, **row}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "demo-1"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "exported" / "rows.jsonl"


class TestOpenAI:
    def test_a_row_is_a_response_with_its_samples_as_choices(self, store: LocalStore, out: Path) -> None:
        Run(store).planned().add(
            "chat",
            [
                {"id": "a", "text": "one"},
                {"id": "b#2", "text": "first", "finish_reason": "length", "output_tokens": 5},
                {"id": "b#2", "sample_index": 1, "text": "second", "prompt_tokens": 0, "output_tokens": 6},
            ],
        )
        assert export(store, "openai-jsonl", out) == [out]
        first, second = lines(out)
        body = first["response"].pop("body")
        assert first["custom_id"] == "a"
        assert first["error"] is None
        assert first["id"].startswith("batch_req_")
        assert first["response"]["status_code"] == 200
        assert first["response"]["request_id"]
        assert body["id"].startswith("chatcmpl-")
        assert (body["object"], body["created"], body["model"]) == (
            *("chat.completion", 1_790_000_000),
            "smollm2-135m-instruct",
        )
        message = {"role": "assistant", "content": "one"}
        assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        assert second["custom_id"] == "b#2"
        choices = second["response"]["body"]["choices"]
        assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in choices] == [
            (0, "first", "length"),
            (1, "second", "stop"),
        ]
        usage = second["response"]["body"]["usage"]
        assert usage == {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}

    def test_errors_are_lines_if_asked_for(self, store: LocalStore, out: Path) -> None:
        partly = {"id": "half", "sample_index": 1, "text": "the other one", "prompt_tokens": 0}
        errors = [{"id": "bad"}, {"id": "bad", "sample_index": 1}, {"id": "half"}]
        rejected = {"id": None, "source_line": 4, "error": {**FAILED["error"], "code": "bad_json"}}
        Run(store).planned().add("chat", [{"id": "good"}, partly], errors).reject(rejected, {"id": "twice"})
        export(store, "openai-jsonl", out)
        assert [line["custom_id"] for line in lines(out)] == ["good", "half"]
        export(store, "openai-jsonl", out, include_errors=True)
        told = lines(out)
        assert [line["custom_id"] for line in told] == ["good", "half", "bad", None, "twice"]
        assert [choice["index"] for choice in told[1]["response"]["body"]["choices"]] == [1]
        assert told[1]["response"]["body"]["usage"] is None  # the sample that the prompt is billed on failed
        assert told[2]["response"] is None
        assert told[2]["error"] == {"code": "timeout", "message": "rows.jsonl:101: took too long"}
        assert told[3]["error"]["code"] == "bad_json"
        assert told[3]["error"]["message"].startswith("rows.jsonl:4: ")
        assert len({line["id"] for line in told}) == len(told)

    def test_it_gets_by_without_the_columns_that_it_can_do_without(self, store: LocalStore, out: Path) -> None:
        Run(store, columns=("text",)).planned().add("chat", [{"id": "a"}, {"id": "b"}])
        export(store, "openai-jsonl", out)
        assert [line["custom_id"] for line in lines(out)] == ["a", "b"]
        assert lines(out)[0]["response"]["body"]["usage"] is None

    def test_but_not_without_the_answer(self, store: LocalStore, out: Path) -> None:
        Run(store, columns=("id",)).planned().add("chat", [{"id": "a"}])
        for to in ("openai-jsonl", "sft-jsonl"):
            with pytest.raises(UsageError, match=r"`text`, which sink.columns"):
                export(store, to, out)


class TestJsonLines:
    def test_values_are_carried_exactly(self, store: LocalStore, out: Path) -> None:
        carried = pa.schema(
            [
                ("big", pa.int64()),
                ("tags", pa.list_(pa.string())),
                ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])),
                ("mixed", pa.string()),
                ("never", pa.string()),
            ]
        )
        rows = [
            {"id": "9007199254740993", "big": 2**63 - 1, "tags": [], "mixed": '{"k": [1, "two"]}'},
            {"id": "😀", "big": -(2**53) - 1, "tags": ["e\u0301", "é"], "nested": {"a": 2**60, "b": [0.1, -0.0]}},
            {"id": "ends", "text": "a\u2028b\u2029c\x85d\ne", "mixed": "null"},
        ]
        Run(store, carried=carried, json_columns=("mixed",)).planned().add("chat", rows)
        export(store, "jsonl", out)
        told = lines(out)
        assert [line["id"] for line in told] == [row["id"] for row in rows]
        assert told[0]["big"] == 2**63 - 1
        assert (told[0]["tags"], told[0]["nested"], told[0]["never"]) == ([], None, None)
        assert told[0]["mixed"] == {"k": [1, "two"]}
        assert told[1]["tags"] == ["e\u0301", "é"]
        assert told[1]["nested"] == {"a": 2**60, "b": [0.1, -0.0]}
        assert told[2]["text"] == rows[2]["text"]
        assert told[2]["mixed"] is None
        assert len(out.read_text().splitlines()) == 3

    def test_errors_come_after_the_ok_rows_of_their_shard(self, store: LocalStore, out: Path) -> None:
        Run(store).planned().add("chat", [{"id": "a", "prompt": "p"}], [{"id": "b", "prompt": "q"}]).reject(
            {"id": None}
        )
        export(store, "jsonl", out, include_errors=True)
        ok, failed, rejected = lines(out)
        assert "error" not in ok
        assert (failed["id"], failed["prompt"], failed["error"]["code"]) == ("b", "q", "timeout")
        assert rejected["id"] is None

    def test_what_json_has_no_form_for(self) -> None:
        day = datetime.date(2026, 11, 29)
        moment = datetime.datetime(2026, 11, 29, 12, 0, 0, 5, tzinfo=datetime.UTC)
        value = [Decimal("1.10"), day, moment, b"\xff", float("nan"), {"x": [float("inf")]}, (1, 2)]
        assert json.loads(json_line(value)) == [
            *("1.10", "2026-11-29", "2026-11-29T12:00:00.000005+00:00", "/w==", None),
            *({"x": [None]}, [1, 2]),
        ]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_everything_else_comes_back_as_it_was(self, value: Any) -> None:
        line = json_line(value)
        assert len(line.splitlines()) == 1
        assert json.loads(line) == value


class TestCsv:
    @pytest.fixture
    def exported(self, store: LocalStore, out: Path) -> Path:
        carried = pa.schema([("note", pa.string()), ("big", pa.int64()), ("tags", pa.list_(pa.string()))])
        rows = [
            {"id": "a", "text": 'he said "yes",\nthen no', "note": "", "big": 2**63 - 1, "tags": ["x", "y"]},
            {"id": "b", "text": "émoji 😀", "note": None, "big": None, "tags": None},
        ]
        columns = ("id", "text", "note", "big", "tags", "lossy", "total_s")
        Run(store, carried=carried, columns=columns).planned().add("chat", rows)
        export(store, "csv", out.with_suffix(".csv"))
        return out.with_suffix(".csv")

    def test_the_standard_library_reads_it(self, exported: Path) -> None:
        with exported.open(newline="") as file:
            first, second = csv.DictReader(file)
        assert first["text"] == 'he said "yes",\nthen no'
        assert (first["big"], json.loads(first["tags"]), first["lossy"]) == (str(2**63 - 1), ["x", "y"], "false")
        assert (second["text"], second["big"], second["tags"]) == ("émoji 😀", "", "")

    def test_so_do_those_who_tell_empty_from_null(self, exported: Path) -> None:
        frame = polars.read_csv(exported)
        assert frame["note"].to_list() == ["", None]
        assert frame["big"].to_list() == [2**63 - 1, None]
        assert duckdb.sql(f"SELECT text, big FROM read_csv('{exported}') ORDER BY id").fetchall() == [
            ('he said "yes",\nthen no', 2**63 - 1),
            ("émoji 😀", None),
        ]

    def test_errors_get_columns_of_their_own(self, store: LocalStore, out: Path) -> None:
        Run(store).planned().add("chat", [{"id": "a"}], [{"id": "b"}]).reject({"id": None, "raw": '{"half'})
        export(store, "csv", out, include_errors=True)
        ok, failed, rejected = csv.DictReader(io.StringIO(out.read_text()))
        assert (ok["error"], ok["raw"]) == ("", "")
        assert json.loads(failed["error"])["code"] == "timeout"
        assert (rejected["text"], rejected["raw"]) == ("", '{"half')


class TestTraining:
    def test_prompts_become_conversations(self, store: LocalStore, out: Path) -> None:
        message = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])
        carried = pa.schema([("prompt", pa.string()), ("messages", pa.list_(message))])
        asked = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"}]
        rows = [
            {"id": "a", "prompt": "Why?", "text": "Because."},
            {"id": "a", "sample_index": 1, "prompt": "Why?", "text": "Why not?"},
            {"id": "b", "messages": asked, "text": "Hello"},
        ]
        Run(store, carried=carried).planned().add("default", rows)
        export(store, "sft-jsonl", out)
        assert [line["messages"] for line in lines(out)] == [
            [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}],
            [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Why not?"}],
            [*asked, {"role": "assistant", "content": "Hello"}],
        ]

    def test_templates_and_system_prompts_are_made_again(self, store: LocalStore, out: Path) -> None:
        tasks = {
            "chat": {"template": "{{ question }}", "system": "Answer in {{ language | default('English') }}."},
            "code": {"template": "{% if hints is none %}No hints.{% endif %} {{ old.name }} in {{ spec.lang }}"},
        }
        carried = pa.schema([(name, pa.string()) for name in ("question", "language", "hints", "new", "spec")])
        job = {"tasks": tasks, "source": {"path": "rows.jsonl", "rename": {"old": "new"}}}
        run = Run(store, job, carried, json_columns=("new", "spec")).planned()
        run.add("chat", [{"id": "a", "question": "Why?"}, {"id": "b", "question": "Où?", "language": "French"}])
        run.add("code", [{"id": "c", "new": '{"name": "sort"}', "spec": '{"lang": "C"}'}])
        export(store, "sft-jsonl", out)
        assert [line["messages"][:-1] for line in lines(out)] == [
            [{"role": "system", "content": "Answer in English."}, {"role": "user", "content": "Why?"}],
            [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Où?"}],
            [{"role": "user", "content": "No hints. sort in C"}],
        ]

    def test_an_earlier_runs_rows(self, store: LocalStore, out: Path) -> None:
        job = {"source": {"path": "run:first-1"}, "tasks": {"default": {"template": "Improve: {{ text }}"}}}
        carried = pa.schema([("input_text", pa.string()), ("input_task", pa.string())])
        rows = [{"id": "a#0", "input_text": "draft", "input_task": "gone", "text": "better"}]
        Run(store, job, carried).planned().add("default", rows)
        export(store, "sft-jsonl", out)
        assert lines(out)[0]["messages"][0]["content"] == "Improve: draft"

    @pytest.mark.parametrize(
        ("task", "columns", "dropped"),
        [({}, ("text",), "`prompt`"), ({"template": "{{ prompt }} {{ more }}"}, ("text", "prompt"), "`more`")],
    )
    def test_a_dropped_column_is_named(
        self, store: LocalStore, out: Path, task: dict[str, str], columns: tuple[str, ...], dropped: str
    ) -> None:
        carried = pa.schema([("prompt", pa.string()), ("more", pa.string())])
        run = Run(store, {"tasks": {"chat": task}}, carried, columns=columns).planned()
        run.add("chat", [{"id": "a", "prompt": "p", "more": "m"}])
        with pytest.raises(UsageError, match=f"prompts of task chat from {dropped}, which sink.columns"):
            export(store, "sft-jsonl", out)
        assert not out.exists()

    def test_failed_rows_are_no_examples(self, store: LocalStore, out: Path) -> None:
        Run(store).planned().add("chat", [{"id": "a", "prompt": "p"}])
        with pytest.raises(UsageError, match="leave the errors out"):
            export(store, "sft-jsonl", out, include_errors=True)


class TestFiles:
    @pytest.fixture
    def run(self, store: LocalStore) -> Run:
        run = Run(store).planned()
        run.add("chat", [{"id": "a", "prompt": "p"}, {"id": "b", "prompt": "q"}])
        return run.add("code", [{"id": "c", "prompt": "r"}], [{"id": "d"}]).reject(
            {"id": None}, {"id": "e", "task": "chat"}
        )

    @pytest.mark.parametrize("to", FORMATS)
    def test_twice_gives_the_same_bytes(self, run: Run, out: Path, to: ExportFormat) -> None:
        export(run.store, to, out)
        first = out.read_bytes()
        assert first
        assert export(run.store, to, out) == [out]
        assert out.read_bytes() == first

    @pytest.mark.parametrize("to", FORMATS)
    def test_one_file_per_task_holds_the_same_lines(self, run: Run, out: Path, to: ExportFormat) -> None:
        suffix = ".csv" if to == "csv" else ".jsonl"
        export(run.store, to, out)
        files = export(run.store, to, out.parent / "tasks", split_by_task=True)
        assert [file.name for file in files] == [f"chat{suffix}", f"code{suffix}"]
        header = out.read_text().splitlines()[:1] if to == "csv" else []
        split = [line for file in files for line in file.read_text().splitlines()[len(header) :]]
        assert header + split == out.read_text().splitlines()

    def test_rows_that_never_had_a_task_have_a_file_too(self, run: Run, out: Path) -> None:
        files = export(run.store, "jsonl", out.parent, split_by_task=True, include_errors=True)
        assert {file.name: [row["id"] for row in lines(file)] for file in files} == {
            "_no_task.jsonl": [None],
            "chat.jsonl": ["a", "b", "e"],
            "code.jsonl": ["c", "d"],
        }

    def test_a_dropped_task_column_is_known_all_the_same(self, store: LocalStore, out: Path) -> None:
        Run(store, columns=("text",)).planned().add("chat", [{"id": "a"}])
        assert export(store, "jsonl", out, split_by_task=True) == [out / "chat.jsonl"]

    def test_a_file_is_no_folder(self, run: Run, out: Path) -> None:
        out.parent.mkdir()
        with pytest.raises(UsageError, match="is a folder; give a file"):
            export(run.store, "jsonl", out.parent)
        out.write_text("")
        with pytest.raises(UsageError, match="is a file; give a folder"):
            export(run.store, "jsonl", out, split_by_task=True)

    def test_a_failed_export_leaves_the_last_one(self, run: Run, out: Path) -> None:
        export(run.store, "jsonl", out)
        whole = out.read_bytes()
        run.store.put("data/default-000009.parquet", parquet_bytes(pa.table({"row_id": ["x#0"]}), "zstd"))
        with pytest.raises(StorageError, match=r"data/default-000009.parquet has no draftfleet.shard footer"):
            export(run.store, "jsonl", out)
        assert out.read_bytes() == whole
        assert os.listdir(out.parent) == [out.name]

    def test_a_full_disk_is_told(self, run: Run, out: Path) -> None:
        out.parent.mkdir()
        part = out.with_name(f"{out.name}.part")
        part.symlink_to("/dev/full")
        with pytest.raises(StorageError, match=r"cannot write .*rows.jsonl: No space left on device"):
            export(run.store, "jsonl", out)
        assert os.listdir(out.parent) == []

    def test_nothing_to_export(self, store: LocalStore, out: Path) -> None:
        with pytest.raises(UsageError, match="no run in"):
            export(store, "jsonl", out)
        Run(store).planned()
        with pytest.raises(UsageError, match=r"no row of .* is done yet"):
            export(store, "jsonl", out)

    def test_a_run_of_which_all_was_rejected(self, store: LocalStore, out: Path) -> None:
        Run(store).planned().reject({"id": None})
        export(store, "csv", out, include_errors=True)
        assert len(list(csv.DictReader(io.StringIO(out.read_text())))) == 1

    def test_a_run_in_s3(self, s3_bucket: S3Bucket, out: Path) -> None:
        store = open_store(s3_bucket.url, s3_bucket.storage)
        run = Run(store).planned()
        for number in range(8):
            run.add("chat", [{"id": f"{number}", "prompt": "p"}], [{"id": f"{number}-bad"}])
        export(store, "openai-jsonl", out, include_errors=True)
        expected = [custom_id for number in range(8) for custom_id in (f"{number}", f"{number}-bad")]
        assert [line["custom_id"] for line in lines(out)] == expected


class TestOrder:
    @settings(max_examples=15, deadline=None)
    @given(data=st.data())
    def test_source_order_does_not_depend_on_the_shards(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        rows = [
            {"id": f"{file}{line}", "sample_index": sample, "source_file": file, "source_line": line, "prompt": "p"}
            for file in ("b.jsonl", "a.jsonl")
            for line in (1, 2, 10)
            for sample in (0, 1)
        ]
        groups = [rows[start : start + 2] for start in range(0, len(rows), 2)]
        shuffled = data.draw(st.permutations(groups))
        cut = data.draw(st.integers(0, len(shuffled)))
        folder = tmp_path_factory.mktemp("run")
        run = Run(LocalStore(str(folder / "demo-1")), sources=("b.jsonl", "a.jsonl")).planned()
        for part in (shuffled[:cut], shuffled[cut:]):
            run.add("chat", [row for group in part for row in group])
        export(run.store, "jsonl", folder / "rows.jsonl", order="source")
        told = lines(folder / "rows.jsonl")
        assert [(row["id"], row["sample_index"]) for row in told] == [(row["id"], row["sample_index"]) for row in rows]

    def test_errors_find_their_place(self, store: LocalStore, out: Path) -> None:
        run = Run(store).planned().add("code", [{"id": "c", "source_line": 3}], [{"id": "a", "source_line": 1}])
        run.reject({"id": "b", "source_line": 2})
        export(store, "openai-jsonl", out, include_errors=True, order="source")
        assert [line["custom_id"] for line in lines(out)] == ["a", "b", "c"]

    def test_the_place_must_have_been_kept(self, store: LocalStore, out: Path) -> None:
        Run(store, columns=("text",)).planned().add("chat", [{"id": "a"}])
        with pytest.raises(UsageError, match=r"`source_file`, which sink.columns"):
            export(store, "jsonl", out, order="source")
