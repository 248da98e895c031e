"""Loading a job: what a user wrote is what the job says, and what is wrong is told where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.job import Job, Sampling, Task
from configs.load import describe, dump_job, load_job

SMALLEST = "workload: w\nsource: {path: rows.jsonl}\n"


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> Path:
        file = tmp_path / "job.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return _write


def complaint(file: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_job(file, overrides)
    return str(caught.value)


def test_smallest_job_has_every_default(write, tmp_path):
    job = load_job(write(SMALLEST))
    assert job == Job(workload="w", source={"path": str(tmp_path / "rows.jsonl")})


def test_misspelt_key_names_line_and_nearest(write):
    text = SMALLEST + "tasks:\n  code:\n    sampling:\n      temprature: 0.2\n"
    assert complaint(write(text)).endswith(
        "line 6: tasks.code.sampling.temprature is not a key; did you mean temperature?"
    )


def test_key_at_the_wrong_place_names_the_right_one(write):
    assert "temperature is not a key; it stands at tasks.*.sampling.temperature" in complaint(
        write(SMALLEST + "temperature: 1\n")
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file(write):
    text = """\
source:
  limit: 0
engine:
  max_num_seqs: many
  kind: torhc
labels: {year: 2026}
sink: parquet
draft: {ngram_min: 4, ngram_max: 3}
"""
    lines = complaint(write(text), "seed=-1", "shard=[").splitlines()
    assert lines[0].endswith("job.yaml: 10 problems")
    assert [line.strip() for line in lines[1:]] == [
        "--set shard: '[' is not a YAML value; put quotes around text with special characters",
        "workload is missing: the name that the cost is reported under",
        "--set seed: -1 must be at least 0",
        "line 1: source.path is missing: file, folder or glob, local or s3://, or run:<id>, or a list of them; "
        "a relative path starts at the job file's folder, in --set at the working directory",
        "line 2: source.limit: 0 must be at least 1",
        "line 4: engine.max_num_seqs: 'many' must be a whole number",
        "line 5: engine.kind: 'torhc' must be 'torch'; did you mean torch?",
        "line 6: labels.year: 2026 must be text; put quotes around it",
        "line 7: sink: 'parquet' is a section: its keys stand below it, indented; there are: columns, compression, "
        "path, token_ids",
        "line 8: draft: {'ngram_min': 4, 'ngram_max': 3} is refused: ngram_min 4 is above ngram_max 3",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed: 1\nseed: 2\n", "job.yaml:2:1: 'seed' is given twice, first in line 1"),
        ("source: {path: a, path: b}\n", "job.yaml:1:19: 'path' is given twice"),
        ("a: [1,\n", "job.yaml:2:1: "),
        ("a: 1\n\tb: 2\n", "job.yaml:2:1: found character '\\t'"),
        ("[a]: 1\n", "job.yaml:1:1: a key must be plain text"),
        ("", "is empty; a job is a mapping"),
        ("tasks: 3\n", "line 1: tasks: 3 must be a mapping of names to values"),
        ("- a\n", "holds a list; a job is a mapping"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
)
def test_what_is_not_a_mapping_of_sections(write, text, reason):
    assert reason in complaint(write(text))


def test_missing_file_names_its_neighbour(write, tmp_path):
    write(SMALLEST)
    assert f"did you mean {tmp_path / 'job.yaml'}?" in complaint(tmp_path / "jobs.yaml")
    assert "draftfleet init" in complaint(tmp_path / "nowhere" / "x.yaml")


def test_file_that_is_not_text(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"PAR1\xff\xfe")
    assert "is not UTF-8 text (byte 4)" in complaint(tmp_path / "job.yaml")


def test_empty_sections_mean_their_defaults(write):
    job = load_job(write(SMALLEST + "engine:\nlabels:\ntasks:\n  code:\n  chat:\n    sampling:\n    draft:\n"))
    assert job.tasks == {"code": Task(), "chat": Task()}
    assert load_job(write(SMALLEST + "tasks:\n")).tasks == {}


def test_anchors_and_merges_share_a_section(write):
    text = """\
tasks:
  a: {sampling: &low {temperature: 0.1, max_tokens: 5}}
  b: {sampling: {<<: *low, max_tokens: 9}}
"""
    job = load_job(write(SMALLEST + text))
    assert job.tasks["b"].sampling == Sampling(temperature=0.1, max_tokens=9)


def test_bare_off_is_the_policy_off(write):
    job = load_job(write(SMALLEST + "draft: {policy: {policy: off}}\n"))
    assert job.draft.policy.policy == "off"


def test_keys_are_text_as_written(write):
    job = load_job(write(SMALLEST + "labels: {2026: a, yes: b}\n"))
    assert job.labels == {"2026": "a", "yes": "b"}


class TestOverrides:
    def test_values_are_yaml(self, write):
        job = load_job(
            write(SMALLEST + "tasks: {code: {}}\nteam: x\n"),
            [
                "tasks.code.sampling.temperature=0.2",
                "tasks.code.sampling.stop=[a, 'b=c']",
                "tasks.default.system=Be brief, please",
                "sink.token_ids=true",
                "labels.build.number=4.2.1",
                "team=",
            ],
        )
        assert job.tasks["code"].sampling == Sampling(temperature=0.2, stop=("a", "b=c"))
        assert job.tasks["default"].system == "Be brief, please"
        assert job.sink.token_ids is True
        assert job.labels == {"build.number": "4.2.1"}
        assert job.team is None

    def test_only_the_named_task_of_a_shared_section_changes(self, write):
        text = "tasks:\n  a: {sampling: &low {temperature: 0.1}}\n  b: {sampling: *low}\n"
        job = load_job(write(SMALLEST + text), ["tasks.a.sampling.temperature=0.5"])
        assert [job.tasks[name].sampling.temperature for name in "ab"] == [0.5, 0.1]

    def test_the_last_one_wins(self, write):
        assert load_job(write(SMALLEST), ["seed=1", "seed=2"]).seed == 2

    @pytest.mark.parametrize(
        ("override", "reason"),
        [
            ("tasks.cdoe.sampling.n=2", "tasks.cdoe is not a task of this job; did you mean code?"),
            ("engine.max_num_seq=3", "engine.max_num_seq is not a key; did you mean max_num_seqs?"),
            ("engin.device=cpu", "engin is not a key; did you mean engine?"),
            ("model.path.x=1", "model.path.x: model.path is a value and has no keys below it"),
            ("seed", "seed: write it as key=value"),
            ("seed=x", "--set seed: 'x' must be a whole number"),
            ("tasks.code.sampling={top_p: 2}", "--set tasks.code.sampling.top_p: 2 must be at most 1"),
        ],
    )
    def test_what_cannot_be_set(self, write, override, reason):
        assert reason in complaint(write(SMALLEST + "tasks: {code: {}}\n"), override)


class TestPaths:
    def test_inputs_start_at_the_file_and_in_set_at_the_working_directory(self, write, tmp_path, monkeypatch):
        here = tmp_path / "elsewhere"
        here.mkdir()
        monkeypatch.chdir(here)
        text = "workload: w\nsource: {path: [a.jsonl, ../b/*.csv, /c.csv, 's3://b/k', 'run:x']}\n"
        job = load_job(write(text + "model: {path: ./ckpt, chat_template: chat.jinja}\ndraft: {path: head}\n"))
        assert job.source.path == (
            f"{tmp_path}/a.jsonl",
            f"{tmp_path.parent}/b/*.csv",
            "/c.csv",
            "s3://b/k",
            "run:x",
        )
        assert (job.model.path, job.model.chat_template) == (f"{tmp_path}/ckpt", f"{tmp_path}/chat.jinja")
        assert job.draft.path == f"{tmp_path}/head"
        job = load_job(tmp_path / "job.yaml", ["source.path=a.jsonl", "model.path=../m", "draft.path=head"])
        assert (job.source.path, job.model.path) == (f"{here}/a.jsonl", f"{tmp_path}/m")
        assert job.draft.path == f"{here}/head"

    def test_the_way_to_the_job_file_does_not_matter(self, write, tmp_path, monkeypatch):
        file = write(SMALLEST)
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        assert load_job("../job.yaml") == load_job(file)

    def test_model_names_and_the_sink_stay_as_they_are(self, write):
        job = load_job(write(SMALLEST))
        assert (job.model.path, job.sink.path) == ("smollm2-135m-instruct", "output")

    def test_a_folder_with_brackets_is_not_part_of_the_glob(self, tmp_path):
        folder = tmp_path / "[x]"
        folder.mkdir()
        (folder / "job.yaml").write_text("workload: w\nsource: {path: '*.jsonl'}\n")
        assert load_job(folder / "job.yaml").source.path == f"{tmp_path}/[[]x]/*.jsonl"


texts = st.text(st.characters(codec="utf-8"), max_size=30)
names_of_files = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 5),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 10**6),
    stop=st.lists(texts.filter(bool), max_size=3).map(tuple),
    seed=st.none() | st.integers(0, 2**63 - 1),
)
jobs = st.builds(
    Job,
    workload=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z"),
    labels=st.dictionaries(texts, texts, max_size=3),
    source=st.builds(dict, path=names_of_files.map(lambda text: f"/data/{text}".rstrip("/."))),
    tasks=st.dictionaries(
        st.from_regex(r"\A[a-z][a-z0-9_-]{0,9}\Z"),
        st.builds(Task, template=st.none() | texts, system=st.none() | texts, sampling=samplings),
        max_size=3,
    ),
    seed=st.integers(0, 2**63 - 1),
)


@settings(deadline=None, max_examples=30)
@given(job=jobs)
@pytest.mark.parametrize("written", [dump_job, describe])
def test_a_written_job_loads_to_itself(job, written, tmp_path_factory):
    file = tmp_path_factory.mktemp("job") / "job.yaml"
    file.write_text(written(job), encoding="utf-8", newline="")
    job = job.model_copy(update={"source": load_job(file).source})  # the path is normalized; tested above
    assert load_job(file) == job


def test_describe_explains_every_value(write):
    lines = describe(load_job(write(SMALLEST))).splitlines()
    assert f"{'  max_num_seqs: 16':<48}  # sequences decoded together in one engine" in lines
    assert all("#" in line or line.endswith(":") for line in lines)


def test_an_endless_alias_is_refused(write):
    assert "tasks" in complaint(write(SMALLEST + "tasks: &t {a: *t}\n"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [("[]", "names no file"), ("''", "names no file"), (r'"a\0.jsonl"', "NUL")],
)
def test_a_source_must_name_something(write, path: str, reason: str) -> None:
    text = complaint(write(f"workload: w\nsource: {{path: {path}}}\n"))
    assert "source.path" in text
    assert reason in text


def test_yaml_nested_without_end_is_refused(write) -> None:
    assert "nests lists or mappings too deeply" in complaint(write("workload: " + "[" * 5000 + "]" * 5000))
    assert "too deeply" in complaint(write(SMALLEST), "workload=" + "[" * 5000 + "]" * 5000)
