"""The comparison of the pipeline with the bare engine, as numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from conditions import told
from paired import Ratio, paired_ratio

from river.measurement import Measurement

RATIOS = {
    "tokens_per_s": "tokens/s, start-up excluded",
    "tokens_per_s_whole": "tokens/s, start-up included",
    "tokens_per_busy_s": "tokens per busy second of an engine",
    "busy_share": "share of the time that engines are busy",
    "tokens_per_step_cpu_s": "tokens per CPU second of the threads that step",
    "undisturbed_tokens_per_s": "tokens/s undisturbed, reckoned from CPU seconds",
}
SHARES = {
    "busy_share": "busy",
    "head_share": "not begun",
    "tail_share": "nothing left",
    "between_share": "between rounds",
}


@dataclass(frozen=True, slots=True)
class Result:
    """Everything measured, pair by pair."""

    conditions: dict[str, Any]
    settings: dict[str, Any]
    our_name: str
    their_name: str
    ours: tuple[Measurement, ...]
    theirs: tuple[Measurement, ...]

    @property
    def sides(self) -> dict[str, tuple[Measurement, ...]]:
        return {self.our_name: self.ours, self.their_name: self.theirs}

    def ratio(self, name: str) -> Ratio:
        """Ours / theirs of one of the RATIOS."""
        return paired_ratio([getattr(each, name) for each in self.ours], [getattr(each, name) for each in self.theirs])

    def to_json(self) -> dict[str, Any]:
        ratios = {name: asdict(self.ratio(name)) for name in RATIOS}
        sides = {name: [each.to_json() for each in side] for name, side in self.sides.items()}
        return {"conditions": self.conditions, "settings": self.settings, "ratios": ratios, **sides}


def report(results: Mapping[str, Result]) -> str:
    """Markdown."""
    parts = [_conditions(results)]
    for name, result in results.items():
        parts += [_heading(name, result), _ratios(result), _shares(result), _cpu(result)]
    return "# The river against the bare engine\n\n" + "\n".join("\n".join(part) + "\n" for part in parts)


def _conditions(results: Mapping[str, Result]) -> Iterator[str]:
    first = next(iter(results.values()))
    where, what = first.conditions, first.settings
    noise = max(each.other_cpu for result in results.values() for each in result.theirs)
    yield "Measured by `benchmarks/pipeline_efficiency.py`, which says what each line means."
    yield ""
    yield from told(where)
    in_flight = what["cluster"]["shards_in_flight"]
    yield f"- {what['model']['path']} in {what['model']['dtype']}, engines of one thread,"
    yield f"  {what['engine']['max_num_seqs']} sequences and {in_flight} shards in flight each"
    yield f"- {what['rows']} rows of the demo's kind, {what['shortest']} to {what['longest']} output tokens each,"
    yield f"  {what['output_tokens']:,} together; pairs in turn (ABBA)"
    yield f"- other programs used up to {noise:.2f} cores while it was measured"


def _heading(name: str, result: Result) -> Iterator[str]:
    engines, cores = result.settings["engines"], result.conditions["cores"]
    yield f"## {name.capitalize()}: engines on {engines} of {cores} cores"


def _ratios(result: Result) -> Iterator[str]:
    yield f"| {result.our_name} / {result.their_name} | ratio | 95 % interval | pairs |"
    yield "|---|---:|---:|---|"
    for name, title in RATIOS.items():
        ratio = result.ratio(name)
        pairs = ", ".join(f"{each:.3f}" for each in ratio.pairs)
        yield f"| {title} | {ratio.mean:.3f} | {ratio.low:.3f} … {ratio.high:.3f} | {pairs} |"


def _shares(result: Result) -> Iterator[str]:
    yield f"| engines' time while generating | {' | '.join(SHARES.values())} | tok/s | start-up and end |"
    yield f"|---|{'---:|' * (len(SHARES) + 2)}"
    for name, side in result.sides.items():
        shares = " | ".join(f"{mean(getattr(each, share) for each in side):.1%}" for share in SHARES)
        speed, around = (
            mean(each.tokens_per_s for each in side),
            mean(each.whole_s - each.generating_s for each in side),
        )
        yield f"| {name} | {shares} | {speed:.1f} | {around:.1f} s |"


def _cpu(result: Result) -> Iterator[str]:
    cores, names = result.conditions["cores"], " | ".join(result.sides)
    yield f"| CPU ms per second of generating | {names} | difference, of {cores} cores |"
    yield "|---|---:|---:|---:|"
    for part in dict.fromkeys(part for each in (*result.ours, *result.theirs) for part in each.cpu):
        ours, theirs = (mean(each.cpu.get(part, 0.0) for each in side) for side in (result.ours, result.theirs))
        yield f"| {part} | {1000 * ours:.1f} | {1000 * theirs:.1f} | {(ours - theirs) / cores:+.2%} |"
