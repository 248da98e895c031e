"""What the project says of itself is true: pins, recipes, examples and reference pages fit the code."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import jinja2
import jinja2.meta
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from readme_tree import readme_with, tree

from configs.load import load_job
from configs.reference import reference
from jobs.cli import VERBS
from workers.models import KNOWN

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
VERSIONS = {canonicalize_name(name): version for name, version in PINS.items()}
TARGETS = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"])


def demo_rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in (ROOT / "configs/jobs/demo.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("text", PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"])
def test_every_dependency_is_pinned_within_its_bounds(text):
    requirement = Requirement(text)
    assert requirement.specifier.contains(VERSIONS[canonicalize_name(requirement.name)])


def test_pins_are_exact_and_fit_any_build():
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in PINS.values())


def test_makefile_and_code_install_the_same_versions():
    assert f"TORCH := torch=={VERSIONS['torch']}" in MAKEFILE
    assert f"DEMO_MODEL := {KNOWN['smollm2-135m-instruct'].package}" in MAKEFILE


def test_make_explains_every_target():
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(target in shown for target in TARGETS - {"help", "find-python"})


def test_make_runs_every_benchmark_that_needs_nothing_more_but_the_soak():
    (named,) = re.findall(r"^BENCHMARKS := (.*)$", MAKEFILE, re.MULTILINE)
    sources = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    programs = {name for name, source in sources.items() if "__main__" in source}
    wanting = {name for name in programs if re.search(r'add_argument\("[a-z]', sources[name])}
    assert set(named.split()) == programs - wanting - {"soak"}
    assert all('add_argument("--results"' in sources[name] for name in programs)


def test_ci_script_can_be_run():
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_job_reference_is_up_to_date():
    assert (ROOT / "docs/job.md").read_text() == reference(), "run: draftfleet job > docs/job.md"


@pytest.mark.parametrize("file", sorted((ROOT / "configs/jobs").glob("*.yaml")), ids=lambda file: file.name)
def test_every_job_of_ours_loads(file):
    load_job(file)


def test_demo_rows_are_unique_and_fill_their_templates():
    rows, job = demo_rows(), load_job(ROOT / "configs/jobs/demo.yaml")
    assert len({row["id"] for row in rows}) == len(rows) == 50
    assert {row["task"] for row in rows} == set(job.tasks)
    for row in rows:
        template = job.tasks[str(row["task"])].template
        assert template
        needed = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(template))
        assert needed == row.keys() - {"id", "task"}


def test_readme_names_every_file():
    readme = (ROOT / "README.md").read_text()
    assert readme == readme_with(tree(), readme), "run: python tests/readme_tree.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text()
    code = "\n".join(re.findall(r"`[^`\n]+`|^ {4}.*$", text, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", code)) <= TARGETS
    assert set(re.findall(r"\bdraftfleet (?!-)([a-z][a-z-]*)", code)) <= set(VERBS)
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / path).exists(), path
    for path in re.findall(r"`((?:configs|workers|pipeline|jobs|tests|benchmarks|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


MAKES_A_ROW_ERROR = re.compile(r"(\w+\.)*(RowError|row_error|_error|RejectedRow|RowProblem|add_bad)")
CODE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")


def codes_raised() -> set[str]:
    """What planning calls the errors of rows: the code words among the arguments of what makes one."""
    modules = [*ROOT.glob("pipeline/planning/*.py"), *ROOT.glob("pipeline/source/*.py")]
    nodes = [node for module in modules for node in ast.walk(ast.parse(module.read_text()))]
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and MAKES_A_ROW_ERROR.fullmatch(ast.unparse(node.func))
    ]
    words = [each.value for call in calls for each in call.args if isinstance(each, ast.Constant)]
    return {word for word in words if isinstance(word, str) and CODE.fullmatch(word)}


def test_the_docs_promise_the_codes_that_rejected_rows_bear():
    text = (ROOT / "docs/sources.md").read_text()
    (table,) = re.findall(r"^\| code \| means \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    promised = [code for line in table.splitlines() for code in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(promised) == sorted(codes_raised())


def test_changelog_knows_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {PROJECT['project']['version']}" in changelog
