"""`draftfleet init`: what it writes loads as it is, and the rows that it looked at fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import SourceError, UsageError
from configs.job import Job
from configs.load import load_job
from jobs.init import command
from pipeline.guess import look, misfits
from pipeline.planning.carried import refuse_clashes
from pipeline.planning.row_check import OVERRIDES
from pipeline.schema import RESERVED_NAMES


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def init(file: Path | str, output: Path) -> tuple[Job, str]:
    """The written job and what was printed; errors on purpose are raised."""
    done = CliRunner().invoke(command, [str(file), "-o", str(output)], catch_exceptions=False, standalone_mode=False)
    if done.exception:
        raise done.exception
    job = load_job(output)
    columns = look(job, output.parent).source.columns
    refuse_clashes(look(job, output.parent).columns, columns.ours, "the source")
    return job, done.output


@pytest.fixture
def written(tmp_path):
    def _written(rows: list[dict[str, Any]]) -> tuple[Job, str]:
        return init(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "job.yaml")

    return _written


def test_plain_prompts(written, tmp_path):
    job, out = written([{"id": 2**53 + 1, "prompt": "One?"}, {"id": 2**53 + 2, "prompt": "Two?"}])
    assert (job.source.columns.id, job.source.columns.prompt) == ("id", "prompt")
    assert job.source.path == f"{tmp_path}/rows.jsonl"
    assert job.workload == "rows"
    assert "all of the rows fit this job" in out
    assert f"next: draftfleet plan {tmp_path}/job.yaml --dry-run" in out
    assert "path: rows.jsonl" in (tmp_path / "job.yaml").read_text()


def test_columns_that_clash_get_a_rename(tmp_path):
    (tmp_path / "t.csv").write_text("text,status,error\nWhere is it?,open,\nMoney back,closed,late\n")
    job, out = init(tmp_path / "t.csv", tmp_path / "job.yaml")
    assert job.source.rename == {"text": "input_text", "error": "input_error"}
    assert job.source.columns.prompt == "text"
    assert "rename    text -> input_text" in out
    assert misfits(job, tmp_path) == []


def test_openai_batch_needs_no_columns(written):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    job, out = written([line, {**line, "custom_id": "b"}])
    assert job.source.columns == type(job.source.columns)()
    assert "the lines say what is the id" in out
    assert "all of the rows fit this job" in out


def test_openai_batch_keeps_the_model_that_its_lines_name(written, tmp_path):
    body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hi"}]}
    job, out = written([{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}])
    assert job.model.served_name == "llama-3.1-8b"
    assert "name the model llama-3.1-8b" in out
    assert "all of the rows fit this job" in out


def test_a_batch_may_begin_with_a_blank_line(tmp_path):
    body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "rows.jsonl").write_text(f"\n{json.dumps(line)}\n")
    job, _ = init(tmp_path / "rows.jsonl", tmp_path / "job.yaml")
    assert job.model.served_name == "llama-3.1-8b"


def test_instruction_with_an_input_that_may_be_missing(written, tmp_path):
    rows = [{"instruction": "Sort", "input": "3 1 2"}, {"instruction": "Say hi", "input": ""}, {"instruction": "Go"}]
    job, _ = written([{**row, "output": "old answer"} for row in rows])
    assert job.tasks["default"].template == (
        "{{ instruction }}{% if input is defined and input %}\n\n{{ input }}{% endif %}"
    )
    assert misfits(job, tmp_path) == []


def test_messages(written):
    job, _ = written([{"uuid": "u1", "messages": [{"role": "user", "content": "Hi"}], "prompt": "no"}])
    assert (job.source.columns.id, job.source.columns.messages) == ("uuid", "messages")


def test_messages_that_hold_the_answer_already(written, tmp_path):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    job, out = written([{"conversations": turns}])
    assert "selectattr('role', 'equalto', 'user')" in (job.tasks["default"].template or "")
    assert "ends with an answer" in out
    assert misfits(job, tmp_path) == []


def test_labels_become_tasks(written):
    rows = [{"id": i, "task": "code" if i % 2 else "chat", "question": "Why?"} for i in range(6)]
    job, out = written(rows)
    assert list(job.tasks) == ["chat", "code"]
    assert "task      task: chat, code" in out


def test_a_task_column_without_labels_is_carried_under_another_name(written, tmp_path):
    job, out = written([{"id": 1, "task": "Fix the door", "prompt": "x"}, {"id": 2, "task": "Paint it", "prompt": "y"}])
    assert job.source.rename == {"task": "input_task"}
    assert "holds no labels" in out
    assert misfits(job, tmp_path) == []


def test_other_columns_with_few_values_are_proposed(written, tmp_path):
    written([{"prompt": f"p{i}", "kind": "ab"[i % 2]} for i in range(8)])
    assert "# task: kind" in (tmp_path / "job.yaml").read_text()


def test_a_repeated_id_is_no_id(written, tmp_path):
    job, out = written([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}])
    assert job.source.columns.id is None
    assert job.source.rename == {"id": "input_id"}
    assert "'a' stands in it twice" in out
    assert misfits(job, tmp_path) == []


def test_sampling_columns_are_told_and_impostors_renamed(written, tmp_path):
    job, out = written([{"prompt": "x", "temperature": 0.5, "n": "Anna", "seed": "pumpkin"}])
    assert job.source.rename == {"n": "input_n", "seed": "input_seed"}
    assert "column temperature sets its row's sampling" in out
    assert misfits(job, tmp_path) == []


def test_without_a_telling_name_the_longest_text_is_the_prompt(written):
    job, _ = written([{"city": "Oslo", "review": "A long walk along the water, then coffee."}])
    assert job.source.columns.prompt == "review"


def test_folder_of_parquet_elsewhere_keeps_its_absolute_path(tmp_path):
    data, here = tmp_path / "data", tmp_path / "here"
    data.mkdir()
    here.mkdir()
    for part in range(2):
        table = pa.table({"ticket_id": [part * 2, part * 2 + 1], "body": ["x", "y"]})
        pq.write_table(table, data / f"part-{part}.parquet")
    job, out = init(data, here / "job.yaml")
    assert (job.source.path, job.source.columns.id, job.source.columns.prompt) == (str(data), "ticket_id", "body")
    assert "parquet, 2 files" in out


def test_rows_that_do_not_fit_are_counted_with_the_first(written):
    _, out = written([{"prompt": "x"}, {"prompt": ""}, {"prompt": "z"}])
    assert "1 of the rows would be rejected; the first: " in out
    assert "rows.jsonl:2: column `prompt` is empty" in out


def test_messages_that_are_mostly_faulty_are_still_messages(written):
    wrong = [{"role": "wizard", "content": "x"}]
    job, out = written([{"messages": wrong}, {"messages": wrong}, {"messages": [{"role": "user", "content": "x"}]}])
    assert job.source.columns.messages == "messages"
    assert "2 of the rows would be rejected; the first: " in out
    assert "messages[0].role is 'wizard'" in out


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", "", "there is no row in it"),
        ("a.jsonl", "not json\n", "line 1: the line is not JSON"),
        ("a.jsonl", '{"a": 1}\n', "no column holds text; the columns are a"),
        ("a.xyz", "x", "what format is it?"),
    ],
)
def test_what_cannot_be_used_is_said_and_nothing_written(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=reason.replace("?", r"\?")):
        init(tmp_path / name, tmp_path / "job.yaml")
    assert not (tmp_path / "job.yaml").exists()


def test_an_existing_job_is_kept(written, tmp_path):
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(UsageError, match="exists already and is kept"):
        written([{"prompt": "x"}])
    assert (tmp_path / "job.yaml").read_text() == "mine"


values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.lists(st.integers())
names = st.sampled_from(sorted(RESERVED_NAMES | {*OVERRIDES, "_shard", "Ünit cost", "a.b", "on", "1"})) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=6
)
rows_of_anything = st.lists(st.dictionaries(names, values, max_size=6), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of_anything)
def test_whatever_the_columns_the_written_job_takes_the_rows(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    file = write_jsonl(folder / "rows.jsonl", [{**row, "question": f"What is {i}?"} for i, row in enumerate(rows)])
    job, _ = init(file, folder / "job.yaml")
    assert misfits(job, folder) == []
