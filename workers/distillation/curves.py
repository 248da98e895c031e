"""How a training went, as a picture: loss and hit rates by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from workers.distillation.trainer import StepReport

_POINTS = 200
"""On a curve; each is the mean of the steps around it, which single batches make jump."""


def plot(reports: Sequence[StepReport], path: Path) -> None:
    """Write the picture, as SVG. Nothing if no step was taken."""
    if not reports:
        return
    width = max(1, len(reports) // _POINTS)
    parts = [reports[at : at + width] for at in range(0, len(reports), width)]
    steps = [part[-1].step for part in parts]
    figure = Figure(figsize=(9, 4), layout="constrained")
    loss, hits = figure.subplots(1, 2)
    loss.plot(steps, [_mean([each.loss for each in part]) for part in parts])
    loss.set(xlabel="step", ylabel="loss")
    for position in range(len(reports[0].hit_rates)):
        rates = [_mean([each.hit_rates[position] for each in part]) for part in parts]
        hits.plot(steps, rates, label=f"position {position + 1}")
    hits.set(xlabel="step", ylabel="likeliest token is the target's", ylim=(0, 1))
    hits.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
