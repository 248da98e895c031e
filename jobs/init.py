"""`draftfleet init FILE`: a first job for somebody's data, written after a look at its first rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from configs.document import write_value
from configs.errors import UsageError
from configs.job import Job, Model, Source
from configs.load import load_job
from pipeline.guess import LOOKED_AT, Guess, Sample, guess, look, misfits

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@click.command()
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", default="job.yaml", show_default=True, help="The job file to write.")
def command(file: str, output: str) -> None:
    """Look at FILE (JSONL, CSV, Parquet, an OpenAI batch; a folder, glob or s3:// of them) and write a job for it."""
    target = Path(output).absolute()
    if target.exists():
        raise UsageError(f"{output} exists already and is kept; choose another name with -o")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent} to write {target.name} to; make it first")
    location = file if "://" in file else str(Path(file).expanduser().absolute())
    probe = Job(workload="init", source=Source(path=location))
    sample = look(probe, target.parent)
    guessed = guess(sample)
    with target.open("x", encoding="utf-8") as job_file:
        job_file.write(job_text(_shown_path(location, target.parent), sample, guessed))
    click.echo("\n".join(_report(file, sample, guessed)))
    click.echo("\n".join(_outlook(load_job(target), target, sample)))
    click.echo(f"\nwrote {output}; next: draftfleet plan {output} --dry-run")


def job_text(path: str, sample: Sample, guessed: Guess) -> str:
    """A commented job file. `path` is the source's, relative to the job file's folder or absolute."""
    parts = [
        f"# Written by `draftfleet init` after a look at the first {len(sample.rows):,} rows; it is yours to change.",
        "# Every key, its default and its reason: `draftfleet job`. What this file comes to: `draftfleet job FILE`.",
        "",
        _line(
            f"workload: {write_value(_workload(path))}",
            "the name that the cost is reported under, and of the run's folder",
        ),
        "",
        *_source_lines(path, sample, guessed),
        "",
        "tasks:",
        *(line for label in guessed.labels or ("default",) for line in _task_lines(label, sample, guessed)),
        "",
        *_model_lines(sample),
        "",
        "sink:",
        _line("  path: output", "a folder or s3:// URL; the run becomes a folder in it"),
    ]
    return "\n".join(parts) + "\n"


def _source_lines(path: str, sample: Sample, guessed: Guess) -> Iterator[str]:
    yield "source:"
    yield _line(f"  path: {write_value(path)}", "relative to this file; a folder, a glob, a list and s3:// work too")
    columns = {"id": guessed.id, "prompt": guessed.prompt, "messages": guessed.messages, "task": guessed.task}
    reasons = {
        "id": "identifies a row; comes back with its answer",
        "prompt": "the user's text",
        "messages": "chat messages, role and content",
        "task": "picks one of the tasks below for each row",
    }
    chosen = [(part, name) for part, name in columns.items() if name is not None]
    if chosen or guessed.label_columns:
        yield "  columns:" if chosen else "  # columns:"
    for part, name in chosen:
        yield _line(f"    {part}: {write_value(name)}", reasons[part])
    for name, labels in guessed.label_columns.items():
        yield _line(f"    # task: {write_value(name)}", f"would pick a task by row: {', '.join(labels)}")
    yield from _rename_lines(guessed.rename)


def _rename_lines(rename: Mapping[str, str]) -> Iterator[str]:
    if rename:
        yield _line("  rename:", "these bear names that the output or the sampling needs")
    for old, new in rename.items():
        yield f"    {write_value(old)}: {write_value(new)}"


def _task_lines(label: str, sample: Sample, guessed: Guess) -> Iterator[str]:
    yield f"  {write_value(label)}:"
    if guessed.template is not None:
        yield _line(f"    template: {write_value(guessed.template)}", "Jinja over the columns")
    elif sample.source.format != "openai_batch":
        usable = [name for name in sample.columns if _IDENTIFIER.fullmatch(name)]
        example = guessed.prompt if guessed.prompt in usable else next(iter(usable), None)
        if example is not None:
            text = write_value(f"Answer briefly: {{{{ {example} }}}}")
            yield _line(f"    # template: {text}", f"Jinja over the columns: {', '.join(usable[:12])}")
    yield _line('    # system: "You are a helpful assistant."', "system prompt; Jinja too")
    yield "    sampling:"
    yield _line("      temperature: 0", "0 is greedy: the most likely text; 0.7 and more for variety")
    yield _line("      max_tokens: 256", "output tokens per row at most; a longer answer is cut")
    yield _line("    draft: {policy: auto}", "draft length as it pays; off is plain decoding, with the same text")


def _model_lines(sample: Sample) -> Iterator[str]:
    yield "model:"
    yield _line(f"  path: {Model().path}", "a small demo model; set the folder of your checkpoint here")
    if sample.model is not None:
        yield _line(f"  served_name: {write_value(sample.model)}", "what the rows call the model that answers them")


def _report(file: str, sample: Sample, guessed: Guess) -> Iterator[str]:
    files = f", {len(sample.source.files):,} files" if len(sample.source.files) > 1 else ""
    yield f"{file}: {sample.source.format}{files}"
    yield f"  columns   {_some(sample.columns)} (of the first {len(sample.rows):,} rows)"
    if sample.source.format == "openai_batch":
        yield "  the lines say what is the id, the prompt and the sampling"
        yield from _model_note(sample)
        return
    yield f"  id        {guessed.id or 'none: made from the prompt and the number of the row'}"
    yield f"  prompt    {guessed.template or guessed.messages or guessed.prompt}"
    yield f"  task      {guessed.task + ': ' + ', '.join(guessed.labels) if guessed.task else 'default, for every row'}"
    for old, new in guessed.rename.items():
        yield f"  rename    {old} -> {new}"
    for note in guessed.notes:
        yield f"  note      {note}"


def _model_note(sample: Sample) -> Iterator[str]:
    if sample.model is not None:
        yield f"  note      the lines name the model {sample.model}: set model.path to the checkpoint to answer for it"


def _outlook(job: Job, target: Path, sample: Sample) -> Iterator[str]:
    """Would the job that was written take the rows that were looked at?"""
    rejected = misfits(job, target.parent)
    looked_at = f"the first {LOOKED_AT:,} rows" if len(sample.rows) >= LOOKED_AT else "the rows"
    if not rejected:
        yield f"  all of {looked_at} fit this job"
        return
    path, first = rejected[0]
    yield f"  {len(rejected):,} of {looked_at} would be rejected; the first: {path}:{first.line}: {first.message}"


def _line(text: str, reason: str) -> str:
    return f"{text:<33}  # {reason}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _shown_path(location: str, folder: Path) -> str:
    """Relative if it lies below the job file's folder, so that the two can move together."""
    path = Path(location)
    return str(path.relative_to(folder)) if "://" not in location and path.is_relative_to(folder) else location


def _workload(path: str) -> str:
    """The file's name without its ending, as a name of a workload."""
    last = path.rstrip("/").rpartition("/")[2].partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:100]
    return name or "workload"
