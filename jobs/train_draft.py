"""`draftfleet train-draft`: an EAGLE-3 head, or a small model, from what the fleet has generated."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from configs.errors import UsageError
from configs.job import Draft, Engine, Job, Model
from jobs.options import root_option
from jobs.run_folder import find_run
from pipeline.provenance import git_commit, versions
from pipeline.run_state import RunView, open_run

if TYPE_CHECKING:
    from workers.contract import SpeculationStats
    from workers.distillation.examples import Example
    from workers.distillation.training import Progress

Kind = Literal["head", "model"]
MAX_DRAFT = 4
_LINE_S = 10.0


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@root_option
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("draft-head"), show_default=True,
              help="Its folder; what is there is replaced if the new one is better.")  # fmt: skip
@click.option(
    "--work", type=click.Path(path_type=Path), help="Folder for states and checkpoints; default: OUTPUT.work."
)
@click.option("--held-out", metavar="RUN", help="A run whose prompts judge the head; default: 3 % of RUN's.")
@click.option("--kind", type=click.Choice(["head", "model"]), default="head", show_default=True,
              help="An EAGLE-3 head, or a model of fewer layers.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Of a model.")
@click.option(
    "--draft-vocab", type=click.IntRange(1), default=8192, show_default=True, help="Tokens that a head can propose."
)
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True)
@click.option(
    "--ttt-steps", type=click.IntRange(1, 8), default=3, show_default=True, help="Drafts ahead a head learns to go."
)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1.5e-3, show_default=True)
@click.option("--batch-tokens", type=click.IntRange(16), default=1400, show_default=True, help="Tokens of one step.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def command(
    runs: tuple[str, ...],
    root: str | None,
    output: Path,
    work: Path | None,
    held_out: str | None,
    kind: Kind,
    layers: int,
    draft_vocab: int,
    epochs: float,
    ttt_steps: int,
    learning_rate: float,
    batch_tokens: int,
    device: Literal["auto", "cpu", "cuda"],
    seed: int,
) -> int:
    """Train a draft head or model on the answers of finished runs, each an id, a folder, an s3:// URL or a job file.

    The runs' jobs need sink.token_ids. Called again, it goes on where it was ended.
    """
    import torch

    from jobs.draft_material import Material
    from workers.distillation.trainer import Recipe
    from workers.distillation.training import Training
    from workers.eagle3.pupil import HeadKind
    from workers.factory import device_of
    from workers.small_model import SmallModelKind

    engine = Engine(device=device)
    views = [open_run(find_run(run, root).store) for run in runs]
    judges = open_run(find_run(held_out, root).store) if held_out else None
    model = _one_model([*views, *([judges] if judges else [])])
    material = Material.of(views, judges)
    click.echo(material.told())
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    training = Training(
        kind=HeadKind(draft_vocab, ttt_steps) if kind == "head" else SmallModelKind(layers),
        model=model,
        examples=material.train,
        folder=work or output.with_name(output.name + ".work"),
        recipe=Recipe(
            epochs=epochs,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            seed=seed,
        ),
        device=device_of(engine),
        provenance={
            "kind": kind,
            "runs": [view.plan.run for view in views],
            "target": model.path,
            "git_commit": git_commit(),
            "versions": versions(),
            **material.counts(),
        },
    )
    candidate = output.with_name(output.name + ".new")
    training.run(candidate, Line().show)
    return _settle(candidate, output, kind, model, engine, material.judged())


def _one_model(views: Sequence[RunView]) -> Model:
    models = {Job.model_validate(view.plan.job).model for view in views}
    if len({model.path for model in models}) > 1:
        raise UsageError(f"these runs have different models: {', '.join(sorted(model.path for model in models))}")
    return models.pop()


class Line:
    """A line of progress now and then."""

    def __init__(self) -> None:
        self._told_at = -_LINE_S
        self._started = time.monotonic()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told_at < _LINE_S and progress.done < progress.total:
            return
        self._told_at = now
        if progress.report is None:
            text = f"{progress.done:,}/{progress.total:,} answers read by the target"
        else:
            rates = " ".join(f"{rate:.0%}" for rate in progress.report.hit_rates)
            text = f"step {progress.done:,}/{progress.total:,} · loss {progress.report.loss:.3f} · hits {rates}"
        click.echo(f"{text} · {now - self._started:.0f} s", file=sys.stderr)


def _settle(candidate: Path, output: Path, kind: Kind, model: Model, engine: Engine, judged: Sequence[Example]) -> int:
    """Judge the new one, and the one that it would replace; the better one stays."""
    from workers.distillation.evaluation import figures, is_published, over_tasks, table
    from workers.distillation.provenance import add_to_provenance

    found = _judge(candidate, kind, model, engine, judged)
    add_to_provenance(candidate, {"evaluation": {**figures(found, MAX_DRAFT), "prompts": len(judged)}})
    click.echo(
        "\n".join([f"{candidate}, on prompts it has not seen, greedy, K = {MAX_DRAFT}:", *table(found, MAX_DRAFT)])
    )
    if is_published(output):
        before = _judge(output, kind, model, engine, judged)
        click.echo("\n".join([f"{output}, on the same:", *table(before, MAX_DRAFT)]))
        if over_tasks(before) >= over_tasks(found):
            click.echo(f"{output} stays; the new {kind} is in {candidate}")
            return 0
        output.rename(_free(output))
    candidate.rename(output)
    use = "draft.drafter=eagle3 --set draft.path" if kind == "head" else "draft.drafter=model --set draft.model"
    click.echo(f"{output} is the {kind} now; use it with --set {use}={output.resolve()}")
    return 0


def _free(output: Path) -> Path:
    """A name for the head that is replaced."""
    numbers = range(1, 10_000)
    return next(path for n in numbers if not (path := output.with_name(f"{output.name}.replaced-{n}")).exists())


def _judge(
    drafter: Path, kind: Kind, model: Model, engine: Engine, judged: Sequence[Example]
) -> dict[str, SpeculationStats]:
    from workers.distillation.evaluation import acceptance

    found = str(drafter.resolve())
    draft = Draft(drafter="eagle3", path=found) if kind == "head" else Draft(drafter="model", model=found)
    threads = len(os.sched_getaffinity(0))
    return acceptance(model, draft, engine, judged, k=MAX_DRAFT, max_tokens=128, threads=threads)
