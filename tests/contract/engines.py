"""Engines under the contract suite. A second engine is one more entry: how to make it, and a prompt it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiny_llama import save_tiny_llama

from configs.job import Draft, Engine, Model
from workers import contract
from workers.factory import create_engine


@dataclass(frozen=True)
class EngineUnderTest:
    """`make(folder)` gives a fresh engine that runs at most four sequences at once."""

    name: str
    make: Callable[[Path], contract.Engine]
    prompt: tuple[int, ...]
    exact: bool
    """Outputs do not depend on what else is in the batch, to the bit."""


def torch_engine(folder: Path) -> contract.Engine:
    if not (folder / "config.json").exists():
        save_tiny_llama(folder)
    return create_engine(
        Model(path=str(folder), dtype="float64"),
        Draft(ngram_min=1),
        Engine(device="cpu", max_num_seqs=4, max_batched_tokens=64),
        longest_request_tokens=100,
        threads=1,
    )


ENGINES = [EngineUnderTest("torch", torch_engine, (5, 6, 7, 5, 6, 7, 5, 6), exact=True)]
