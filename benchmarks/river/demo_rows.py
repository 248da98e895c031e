"""Many rows of the demo's kind: its prompts over and over, each time about another case, with its own output length.

What differs stands before the demo's words, so that rows share no more of their prefix than the demo's rows do: the
chat template and the task's own words.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

import configs

JOBS = Path(configs.__file__).parent / "jobs"
VARIED = ("request", "question", "document", "topic")
"""The columns that the demo's templates fill in."""
PLACES = ("Northfield", "Harlow", "Eastmere", "Old Mill", "Saltmarsh", "Greenhill", "Lakeside", "Westbrook")


def write_rows(path: Path, count: int, *, shortest: int, longest: int, seed: int = 0) -> int:
    """Write rows as JSONL. Returns their output tokens together: `max_tokens` is drawn evenly for each."""
    draw = random.Random(seed)
    demo = [json.loads(line) for line in (JOBS / "demo.jsonl").read_text(encoding="utf-8").splitlines()]
    total = 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            row = _varied(demo[number % len(demo)], number, draw)
            row["max_tokens"] = draw.randint(shortest, longest)
            total += row["max_tokens"]
            file.write(json.dumps(row) + "\n")
    return total


def _varied(row: dict[str, Any], number: int, draw: random.Random) -> dict[str, Any]:
    case = f"{draw.choice(PLACES)}, case {draw.randrange(10_000)}: "
    varied = {name: case + value if name in VARIED else value for name, value in row.items()}
    return {**varied, "id": f"{row['id']}-{number:06d}"}


def demo_job(workload: str, **sections: Any) -> dict[str, Any]:
    """The demo's job over `rows.jsonl` with a fixed output length; the sections given replace the demo's."""
    job: dict[str, Any] = yaml.safe_load((JOBS / "demo.yaml").read_text(encoding="utf-8"))
    for task in job["tasks"].values():
        task["sampling"].pop("stop", None)
        task["sampling"]["ignore_eos"] = True
    return {**job, "workload": workload, "source": {"path": "rows.jsonl"}, **sections}
