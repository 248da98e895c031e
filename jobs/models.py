"""`draftfleet models`: the models that are known by name, and making one ready."""

from __future__ import annotations

import click

from workers.models import KNOWN, ModelStatus, fetch, list_models


@click.group()
def command() -> None:
    """Models known by name. A checkpoint folder needs no name: set model.path to it."""


@command.command("list")
def list_command() -> None:
    """List the models known by name, and how far each is on this machine."""
    for status in list_models():
        click.echo(f"{status.model.name}  ({status.model.license})\n  {status.model.about}\n  {_state(status)}")


@command.command("fetch")
@click.argument("name", required=False, default=next(iter(KNOWN)), metavar="[NAME]")
def fetch_command(name: str) -> None:
    """Convert model NAME into the cache and print its folder; at once if that was done before."""
    click.echo(fetch(name))


def _state(status: ModelStatus) -> str:
    """What is there, else the next step."""
    if status.folder is not None:
        return f"ready in {status.folder}"
    if status.installed:
        return f"installed; the first use, or `draftfleet models fetch {status.model.name}`, converts it"
    megabytes = status.model.download_bytes / 1e6
    return f"not installed ({megabytes:.0f} MB): {status.model.install_command}"
