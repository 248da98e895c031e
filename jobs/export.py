"""`draftfleet export`: a run's rows in a format that another program reads."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from configs.errors import UsageError
from jobs.options import root_option, run_argument
from jobs.run_folder import RunFolder, find_run
from pipeline.export.dataset import ExportFormat, ExportOrder, export
from pipeline.layout import CURRENT
from pipeline.run_state import RunView, open_run


@click.command()
@run_argument
@root_option
@click.option("--to", type=click.Choice(get_args(ExportFormat)), required=True, help="The format to write.")
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path),
    help="File to write, or folder with --split-by-task; default: RUN's name.",
)
@click.option("--split-by-task", is_flag=True, help="One file per task.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@click.option("--include-errors", is_flag=True, help="Also the rows that failed, and those that planning rejected.")
@click.option(
    "--order",
    type=click.Choice(get_args(ExportOrder)),
    default="shard",
    show_default=True,
    help="shard: as generated, the longest of a task first; source: as in the input.",
)
def command(
    run: str | None,
    root: str | None,
    to: ExportFormat,
    out: Path | None,
    split_by_task: bool,
    overwrite: bool,
    include_errors: bool,
    order: ExportOrder,
) -> int:
    """Write the rows of RUN to a file, or to one per task. Of an unfinished run: those that are done."""
    folder = find_run(run, root)
    target = (out or default_target(folder, to, split_by_task)).expanduser()
    refuse_loss(target, overwrite)
    written = export(folder.store, to, target, split_by_task=split_by_task, include_errors=include_errors, order=order)
    for path in written:
        click.echo(f"wrote {path}")
    view = open_run(folder.store)
    if not include_errors and (failed := num_failed(view)):
        click.echo(
            f"{failed:,} samples failed and are not in it; they lie, with the reasons, in {view.store.url}/errors"
        )
    if not view.is_complete:
        click.echo(
            f"{folder.run} is {view.state}: {view.samples_done:,}/{view.plan.num_samples:,} samples are done "
            "and exported; export again, with --overwrite, when the rest is"
        )
    return 0


def num_failed(view: RunView) -> int:
    """Samples of a complete run that became error rows; while it is not, those that planning rejected."""
    return view.plan.num_rejected if view.manifest is None else int(view.manifest["usage"]["samples_error"])


def refuse_loss(target: Path, overwrite: bool) -> None:
    """
    Raises:
        UsageError: something is there, or it lies in a run, whose objects are never written by hand.
    """
    if any((folder / CURRENT).is_file() for folder in target.resolve().parents):
        raise UsageError(f"{target} lies in the folder of a run; give --output a place outside of it")
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise UsageError(f"{target} is no file; give --output another name")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists; give --output another name, or add --overwrite to replace it")


def default_target(folder: RunFolder, to: ExportFormat, split_by_task: bool) -> Path:
    """`demo-1.jsonl` in the working directory, or the folder `demo-1-jsonl`: `demo-1` may be the run itself."""
    return Path(f"{folder.run}-{to}") if split_by_task else Path(f"{folder.run}.{'csv' if to == 'csv' else 'jsonl'}")
