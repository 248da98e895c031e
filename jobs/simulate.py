"""`draftfleet simulate`: a run's rounds again, under other draft lengths, another batch or another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from configs.errors import ConfigError, UsageError
from configs.hardware import hardware_names, load_hardware
from jobs.options import root_option
from jobs.run_folder import find_run
from pipeline.trace import Trace, read_trace, trace_keys
from workers.contract import MAX_DRAFT_LEN
from workers.draft_length.cost import Cost, LinearCost
from workers.draft_length.cost_fit import CostFit
from workers.draft_length.profile import fitted_profile, median_error
from workers.draft_length.replay import AutoLengths, FixedLengths, LengthChoice, Replay, Served
from workers.draft_length.stratum import Stratum

POLICIES = ("auto", "oracle", "off")
_FIXED = re.compile(r"^fixed:(?P<k>[0-8])$")


@click.command()
@click.argument("trace", metavar="[RUN|FILE]...", nargs=-1)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("auto", "fixed:3"),
    show_default=True,
    metavar="POLICY",
    help="auto, fixed:K, off, or oracle (the best K of each task in hindsight); may be repeated.",
)
@click.option("--hardware", metavar="NAME|FILE", help="Price rounds as on this machine; default: as in the trace.")
@click.option("--batch", type=click.IntRange(1), help="Sequences at once; default: the trace's mean.")
@click.option("--write-profile", type=click.Path(path_type=Path), metavar="FILE",
              help="Write what the traced rounds took as a profile for --hardware.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of what has to be drawn.")
@root_option
def command(
    trace: tuple[str, ...],
    policies: tuple[str, ...],
    hardware: str | None,
    batch: int | None,
    write_profile: Path | None,
    seed: int,
    root: str | None,
) -> int:
    """Replay a run under other draft lengths.

    RUN, by default the latest, had engine.trace_rounds on; FILE is a trace that such a run wrote. Prints output tokens
    per second of an engine for each task, decoding alone, beside the best K and plain decoding.
    """
    for policy in policies:
        if policy not in POLICIES and not _FIXED.match(policy):
            raise UsageError(f"--policy {policy}: write auto, oracle, off, or fixed:0 to fixed:8")
    traced = read_trace(_files(trace, root))
    if not traced.histories:
        raise UsageError("no rounds were traced there; run the job with --set engine.trace_rounds=true")
    if write_profile is not None:
        click.echo(_write_profile(write_profile, traced, trace))
    cost = _cost_on(hardware, traced) if hardware else _cost_of(traced)
    size = batch or max(1, round(traced.mean_batch))
    told = f"{len(traced.histories):,} requests of {traced.rounds:,} rounds, {size} at once"
    click.echo(f"{told}, priced by {hardware or 'the trace'}")
    replay = Replay(traced.histories, cost, batch=size, seed=seed)
    fixed = {k: replay.run(FixedLengths({}, k)) for k in range(MAX_DRAFT_LEN + 1)}
    best = _best(fixed)
    found = {policy: _run(policy, replay, fixed, best, traced, seed) for policy in policies}
    click.echo("\n".join(_table(found, fixed, best)))
    return 0


def _files(names: Sequence[str], root: str | None) -> Iterator[tuple[str, bytes]]:
    """Trace files by name, those of runs among them."""
    for name in names or (None,):
        if name is not None and name.endswith(".parquet"):
            try:
                yield name, Path(name).read_bytes()
            except OSError as error:
                raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
            continue
        store = find_run(name, root).store
        for key in trace_keys(store):
            yield key, store.get(key)


def _cost_on(hardware: str, traced: Trace) -> Cost:
    """Raises ConfigError: there is no such profile, or it lacks a drafter."""
    profile = load_hardware(hardware)
    if lacking := [name for name in traced.drafters if name not in profile.drafters]:
        raise ConfigError(f"{hardware} has no prices of the trace's drafter {lacking[0]}; add drafters.{lacking[0]}")
    return LinearCost.of(profile)


def _cost_of(traced: Trace) -> Cost:
    """As the traced rounds took.

    Raises:
        UsageError: they do not tell.
    """
    _check_prices(traced)
    fit = CostFit(traced.drafters)
    for shape, seconds in traced.shapes:
        fit.observe(shape, seconds)
    return fit


def _write_profile(file: Path, traced: Trace, names: Sequence[str]) -> str:
    """Raises UsageError or ConfigError: the rounds do not tell, or the file cannot be written."""
    _check_prices(traced)
    source = f"fitted by draftfleet simulate to {len(traced.shapes):,} rounds of {', '.join(names) or 'the latest run'}"
    profile = fitted_profile(traced.shapes, traced.drafters, description=file.stem, source=source)
    try:
        file.write_text(profile.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return f"{file} prices the traced rounds with a median error of {median_error(traced.shapes, profile):.1%}"


def _check_prices(traced: Trace) -> None:
    if all(shape.prefill_tokens for shape, _ in traced.shapes):
        names = ", ".join(hardware_names())
        raise UsageError(
            f"no traced round is without prefill, so none has a price; name --hardware: {names}, or a file"
        )


def _best(fixed: Mapping[int, Mapping[str, Served]]) -> dict[str, int]:
    """Task -> the K with the most tokens per second."""
    return {task: max(fixed, key=lambda k: fixed[k][task].goodput) for task in fixed[0]}


def _run(
    policy: str,
    replay: Replay,
    fixed: Mapping[int, Mapping[str, Served]],
    best: Mapping[str, int],
    traced: Trace,
    seed: int,
) -> Mapping[str, Served]:
    if found := _FIXED.match(policy):
        return fixed[int(found["k"])]
    if policy == "off":
        return fixed[0]
    choice: LengthChoice = AutoLengths(traced.drafters, seed)
    if policy == "oracle":
        strata: set[Stratum] = {history.stratum for history in traced.histories}
        choice = FixedLengths({stratum: best[stratum.task] for stratum in strata})
    return replay.run(choice)


def _table(
    found: Mapping[str, Mapping[str, Served]], fixed: Mapping[int, Mapping[str, Served]], best: Mapping[str, int]
) -> Iterator[str]:
    """A line per policy and task, and one per policy for all: equal tokens of each task."""
    heads = ("tokens/s", "of best K", "of plain", "accepted")
    yield f"{'policy':<10} {'task':<20} " + " ".join(f"{head:>10}" for head in heads) + f" {'mean K':>8}"
    for policy, served in found.items():
        for task, mine in sorted(served.items()):
            ideal, plain = fixed[best[task]][task].goodput, fixed[0][task].goodput
            share = mine.accepted / mine.drafts if mine.drafts else 0.0
            ratios = f"{mine.goodput / ideal:>10.3f} {mine.goodput / plain:>10.3f}"
            yield (
                f"{policy:<10} {task:<20} {mine.goodput:>10,.1f} {ratios} {share:>10.0%} "
                f"{mine.drafts / mine.rounds:>8.2f}"
            )
        tasks = list(served)
        mean = {
            name: _harmonic(each[task].goodput for task in tasks)
            for name, each in (("mine", served), ("plain", fixed[0]))
        }
        ideal = _harmonic(fixed[best[task]][task].goodput for task in tasks)
        yield (
            f"{policy:<10} {'all, equal tokens':<20} {mean['mine']:>10,.1f} {mean['mine'] / ideal:>10.3f} "
            f"{mean['mine'] / mean['plain']:>10.3f}"
        )


def _harmonic(rates: Iterator[float]) -> float:
    values = list(rates)
    return len(values) / sum(1 / rate for rate in values)
