"""`draftfleet show`: a run's counters, a few answers, and how to read the rest."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import click
import pyarrow.parquet as pq

from configs.job import Storage
from jobs.options import root_option, run_argument
from jobs.run_folder import find_run
from jobs.status import details, headline
from pipeline.layout import data_key
from pipeline.plan import PlannedShard
from pipeline.ranged_file import RangedFile
from pipeline.run_state import RunView, open_run
from pipeline.schema import OUTPUT_NAMES
from workers.models import KNOWN

WIDTH = 100
ANSWER_LINES = 6


@click.command()
@run_argument
@root_option
@click.option("-n", "answers", type=click.IntRange(0), default=3, show_default=True, help="Answers to show.")
def command(run: str | None, root: str | None, answers: int) -> int:
    """Show RUN: its state, counters, -n answers of different tasks, and two lines of Python that read all of it."""
    folder = find_run(run, root)
    show(folder.run, open_run(folder.store), answers)
    return 0


def show(run: str, view: RunView, answers: int) -> None:
    """Print a run. Called by `run` as well, when it has nothing left to do."""
    for row in some_rows(view, answers):
        click.echo(answer(row))
    click.echo(headline(run, view))
    for line in details(view)[:-1]:
        click.echo(f"  {line}")
    known = KNOWN.get(view.plan.job["model"]["path"])
    if known is not None:
        click.echo(f"  the model is {known.about}")
    if view.manifest is not None and view.manifest["usage"]["samples_error"]:
        click.echo(f"  the error rows, with their reasons: {view.store.url}/errors")
    if view.done:
        click.echo(f"\nThe dataset: {view.store.url}/data\nRead it with:\n{reader(view)}")


def reader(view: RunView) -> str:
    """Two lines of Python that read the dataset."""
    address = f"{view.store.url}/data"
    if address.startswith("s3://"):
        address = quote(address, safe="/:") + reached_by(Storage.model_validate(view.plan.job["storage"]))
    return f"  import pandas as pd\n  rows = pd.read_parquet({json.dumps(address, ensure_ascii=False)})"


def reached_by(storage: Storage) -> str:
    """What an s3:// address needs for pandas and pyarrow to reach a store that is not AWS, as a query.

    Its keys: the Arrow documentation, "Filesystem Interface", S3 URIs.
    """
    if storage.endpoint_url is None:
        return ""
    endpoint = urlsplit(storage.endpoint_url)
    settings = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme, "region": storage.region}
    return "?" + urlencode({name: value for name, value in settings.items() if value}, safe=":")


def some_rows(view: RunView, count: int) -> list[dict[str, Any]]:
    """The first ok row of different tasks, then further rows, until there are enough."""
    shards = [shard for shard in view.plan.shards if shard.shard in view.done]
    tasks = dict.fromkeys(shard.task for shard in shards)
    firsts = (_rows(view, [shard for shard in shards if shard.task == task], 1) for task in tasks)
    found: dict[str, dict[str, Any]] = {}
    for row in chain(chain.from_iterable(islice(rows, 1) for rows in firsts), _rows(view, shards, count)):
        if len(found) >= count:
            break
        found.setdefault(row["row_id"], row)
    return list(found.values())


def _rows(view: RunView, shards: Sequence[PlannedShard], at_once: int) -> Iterator[dict[str, Any]]:
    """The ok rows of committed shards, read as they are asked for."""
    for shard in shards:
        with RangedFile(view.store, data_key(shard.task, shard.shard)) as file, pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=max(1, at_once)):
                yield from batch.to_pylist()


def answer(row: dict[str, Any]) -> str:
    """One row for a person: what was asked, what came out, shortened."""
    head = " · ".join(str(row[name]) for name in ("task", "row_id") if row.get(name) is not None)
    asked = question(row)
    lines = [f"── {head} " + "─" * max(0, WIDTH - len(head) - 4)]
    if asked:
        lines.append(textwrap.shorten(asked, WIDTH, placeholder=" …"))
    text = [
        part
        for line in str(row.get("text", "")).strip().split("\n")
        for part in (textwrap.wrap(line, WIDTH - 2) or [""])
    ]
    shown = text[:ANSWER_LINES] + (["…"] if len(text) > ANSWER_LINES else [])
    return "\n".join([*lines, *(f"  {line}" for line in shown)])


def question(row: dict[str, Any]) -> str:
    """What was asked, as far as the row carries it: the prompt, the last user message, or the first text column."""
    if row.get("prompt"):
        return str(row["prompt"])
    messages = row.get("messages")
    if isinstance(messages, list):
        return next((str(turn["content"]) for turn in reversed(messages) if turn.get("role") == "user"), "")
    return next((value for name, value in row.items() if name not in OUTPUT_NAMES and isinstance(value, str)), "")
