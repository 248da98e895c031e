"""`draftfleet`: one verb per module, imported when it is called.

`--help` and the verbs that only look must answer at once, so nothing here imports torch, Ray, transformers or pyarrow.
A verb is a module with a `command`; its line of help stands in VERBS, where it costs no import.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import click

from configs.errors import DraftfleetError
from configs.nearest import did_you_mean
from jobs.terminated import handle_sigterm, was_terminated

VERBS: dict[str, tuple[str, str]] = {
    "init": ("jobs.init", "Look at your data and write a commented job file for it."),
    "plan": ("jobs.plan", "Check every row and cut the work into shards; needs no engine."),
    "preview": ("jobs.preview", "Generate a few rows per task to the screen, without a run."),
    "run": ("jobs.run", "Plan and generate; over an unfinished run, resume it."),
    "resume": ("jobs.resume", "Go on with an unfinished run."),
    "stop": ("jobs.stop", "Ask a run to stop; what is committed stays."),
    "status": ("jobs.status", "How far a run is, without a cluster."),
    "show": ("jobs.show", "A run's counters, a few answers, and how to read them."),
    "runs": ("jobs.runs", "List the runs below a folder."),
    "export": ("jobs.export", "Write a run's rows as JSONL, CSV or training data."),
    "train-draft": ("jobs.train_draft", "Train a draft head on what runs have generated."),
    "simulate": ("jobs.simulate", "Replay a run under other draft lengths, or elsewhere."),
    "models": ("jobs.models", "List the models known by name, and fetch one."),
    "job": ("jobs.job", "Explain every value of a job file, or every key there is."),
}
"""Verb -> (module, one line of help), in the order in which somebody meets them."""

INTERRUPTED = 130
"""128 + SIGINT, as shells report it, for a verb that does not handle Ctrl-C itself."""
TERMINATED = 5
"""As of a run that was interrupted: call it again."""


class Verbs(click.Group):
    """A group that knows its verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise click.UsageError(f"{args[0]} is not a command{did_you_mean(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="draftfleet")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def draftfleet() -> None:
    """Offline LLM generation in bulk, on a fleet of speculative-decoding engines.

    A job is one YAML file: `draftfleet init FILE` writes it, `draftfleet run JOB` does it.
    """


def main(args: list[str] | None = None) -> NoReturn:
    """The command `draftfleet`. Errors raised on purpose become one message and their exit code."""
    handle_sigterm()
    sys.exit(_status_of(args if args is not None else sys.argv[1:]))


def _status_of(args: list[str]) -> int:
    """Run one command line. `--debug` counts wherever it stands, since it is added to a line that just failed."""
    debug = "--debug" in args
    try:
        result = draftfleet.main([arg for arg in args if arg != "--debug"], "draftfleet", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except DraftfleetError as error:
        if debug:
            raise
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return TERMINATED if was_terminated() else INTERRUPTED
