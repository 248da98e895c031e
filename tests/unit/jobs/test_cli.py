"""The command line: quick help, one message per error, an exit code that a scheduler can trust."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable

import click
import pytest

from configs.errors import ConfigError, DraftfleetError
from configs.load import load_job
from jobs import cli

HEAVY = ("torch", "ray", "transformers", "pyarrow", "boto3", "duckdb", "pandas", "numpy")


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(list(args))
    return int(left.value.code or 0)


@pytest.fixture
def verb(monkeypatch):
    """Make `draftfleet probe` do something."""

    def _verb(action: Callable[[], object]) -> None:
        module = types.ModuleType("probe")
        module.command = click.command()(action)
        monkeypatch.setitem(sys.modules, "probe", module)
        monkeypatch.setitem(cli.VERBS, "probe", ("probe", "Do what the test says."))

    return _verb


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["rnu"]])
def test_help_imports_nothing_heavy(args):
    script = f"import sys\nfrom jobs.cli import main\ntry: main({args})\nexcept SystemExit: pass\n"
    script += f"print('loaded:', [name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("verb_name", ["job", "models"])
def test_verbs_that_only_look_load_no_engine(verb_name):
    script = f"import sys\nfrom jobs.cli import main\ntry: main(['{verb_name}', '--help'])\nexcept SystemExit: pass\n"
    script += "print('loaded:', [name for name in ('torch', 'ray', 'transformers', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_help_shows_one_line_per_verb_in_the_order_of_first_use(capsys):
    assert run("--help") == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == list(cli.VERBS)
    assert list(cli.VERBS)[:4] == ["init", "plan", "preview", "run"]


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_exists_and_says_what_it_does(name):
    command = cli.draftfleet.get_command(click.Context(cli.draftfleet), name)
    assert isinstance(command, click.Command)
    assert command.help


@pytest.mark.parametrize(("error", "code"), [(ConfigError, 2), (DraftfleetError, 1)])
def test_an_error_on_purpose_is_one_message_and_its_code(verb, capsys, error, code):
    def fail() -> None:
        raise error("row 3 of a.jsonl has no prompt; add one")

    verb(fail)
    assert run("probe") == code
    out = capsys.readouterr()
    assert out.err == "error: row 3 of a.jsonl has no prompt; add one\n"
    assert out.out == ""


@pytest.mark.parametrize("args", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_shows_the_traceback(verb, args):
    def fail() -> None:
        raise ConfigError("wrong")

    verb(fail)
    with pytest.raises(ConfigError):
        cli.main(args)


def test_a_bug_is_not_dressed_up_as_a_message(verb):
    def fail() -> None:
        raise ZeroDivisionError

    verb(fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3), (5, 5)])
def test_what_a_verb_returns_is_the_exit_code(verb, result, code):
    verb(lambda: result)
    assert run("probe") == code


def test_ctrl_c_ends_as_shells_expect(verb, capsys):
    def interrupt() -> None:
        raise KeyboardInterrupt

    verb(interrupt)
    assert run("probe") == 130
    assert "interrupted" in capsys.readouterr().err


def test_sigterm_ends_like_an_interrupted_run(verb, capsys):
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    verb(terminate)
    assert run("probe") == 5
    assert "interrupted" in capsys.readouterr().err


def test_unknown_verb_and_option_are_usage_errors(capsys):
    assert run("rnu") == 2
    assert "rnu is not a command; did you mean run?" in capsys.readouterr().err
    assert run("models", "--lst") == 2


def test_job_prints_a_job_that_loads_to_itself(capsys, tmp_path):
    assert run("job", "configs/jobs/demo.yaml", "--set", "seed=3") == 0
    (tmp_path / "written.yaml").write_text(capsys.readouterr().out)
    assert load_job(tmp_path / "written.yaml") == load_job("configs/jobs/demo.yaml", ["seed=3"])


def test_models_list_names_the_licence_and_the_next_step(capsys):
    assert run("models", "list") == 0
    out = capsys.readouterr().out
    assert "smollm2-135m-instruct  (Apache-2.0)" in out
