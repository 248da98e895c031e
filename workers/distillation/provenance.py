"""What a trained drafter was made of, beside it: `provenance.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROVENANCE = "provenance.json"


def write_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    write_json(folder / PROVENANCE, facts)


def add_to_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    """What is known only later."""
    path = folder / PROVENANCE
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | dict(facts))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
