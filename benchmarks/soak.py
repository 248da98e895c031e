"""Runs that are killed again and again: what is lost, what is doubled, and what each kill costs.

    python benchmarks/soak.py               200 kills, most of an hour on two cores
    python benchmarks/soak.py --go-on       after an interruption: keeps the kinds of kill that are done
    python benchmarks/soak.py --share 0.05  a kill or two of each kind, to see that everything works

`draftfleet run` over a tiny model, 240 rows with two samples each at temperature 1, two engines, on the local disk and
on an S3 server started here. Kills come at random moments (`--seed`), one kind at a time:

    actor     SIGKILL to one engine's process; Ray starts another
    driver    SIGKILL to the driver; `draftfleet run` is called again, as a person or Kubernetes would
    both      an engine, and the driver a moment later
    store     the S3 server is stopped for some seconds; a driver that gives up meanwhile is called again

A run that completes is followed by a new one until there were enough kills. All along, the dataset is read: every file
must be whole, by its footer, and no sample there twice. At the end of each run every sample must be there with the text
of an undisturbed run. Any deviation ends the program with an error, so that a table at the end means: none.

    lost starts     shards that had been given to an engine and were given again, per kill; at most those in flight
    redone s        seconds from the start of the oldest shard that an engine lost until the kill, over all engines, per
                    kill: at most so many engine seconds were spent for nothing
    wall s          from the start of the first run to the end of the last, undisturbed time taken off, per kill

A run that commits nothing for ten minutes has hung, which is a deviation, too.

Results go to `benchmarks/results/soak.{json,md}`, a line for each kind of kill when it is done.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml
from conditions import conditions, told
from river.tiny_model import save_tiny_model

from configs.errors import StorageError
from configs.job import Storage
from pipeline.footer import read_footers
from pipeline.layout import DATA_DIR
from pipeline.ledger import STARTING
from pipeline.plan import load_plan
from pipeline.pulse import engine_snapshots
from pipeline.starts import read_starts
from pipeline.store.base import Store
from pipeline.store.open import open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import s3_server

RESULTS = Path(__file__).parent / "results"
ROWS, SAMPLES, ENGINES, IN_FLIGHT = 240, 2, 2, 3
KINDS = {"disk": ("actor", "driver", "both"), "s3": ("actor", "driver", "both", "store")}
KILLS = {"actor": 55, "driver": 18, "both": 17, "store": 20}
"""Of each kind on each store; 200 over all."""
STANDSTILL_S = 600.0


@dataclass
class Cell:
    """One kind of kill on one kind of store."""

    store: str
    kind: str
    kills: int = 0
    runs: int = 0
    drivers: int = 0
    lost_starts: int = 0
    redone_s: float = 0.0
    wall_s: float = 0.0
    readings: int = 0
    """How often the dataset was read while it grew."""
    worst_lost: list[float] = field(default_factory=list)
    """Lost starts per kill, by run."""
    conditions: dict[str, Any] = field(default_factory=dict)


class Server:
    """An S3 server that can be taken away and comes back at the same address with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._process, self.server = s3_server.start(folder)
        self._command: list[str] = list(self._process.args)  # type: ignore[arg-type]
        s3_server.create_bucket(self.server)
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = (
            self.server.access_key,
            self.server.secret_key,
        )

    @property
    def storage(self) -> Storage:
        return Storage(
            endpoint_url=self.server.endpoint_url, region=self.server.region, addressing_style="path", max_attempts=4
        )

    def stop(self) -> None:
        s3_server.stop(self._process)

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        if not s3_server.is_healthy(self.server, self._process):
            raise SystemExit("the S3 server did not come back")


class Soak:
    """One folder with a job, and the run that nothing disturbed."""

    def __init__(self, folder: Path, server: Server, seed: int) -> None:
        self._folder = folder
        self._server = server
        self._seed = seed
        self._draw = random.Random()
        self._drivers: list[subprocess.Popen[str]] = []
        self._model = save_tiny_model(folder / "model")
        rows = ({"id": f"row-{number}", "prompt": f"Tell about {number}."} for number in range(ROWS))
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self._reference: dict[str, str] = {}
        self.undisturbed_s = 0.0

    def begin(self) -> None:
        """The run that nothing disturbs."""
        started = time.monotonic()
        self._reference = self._texts(self._undisturbed())
        self.undisturbed_s = time.monotonic() - started

    def end(self) -> None:
        """Leave no driver behind."""
        for driver in self._drivers:
            driver.kill()

    def play(self, store: str, kind: str, kills: int) -> Cell:
        """Run after run until there were so many kills."""
        self._draw.seed(f"{self._seed} {store} {kind}")
        cell, started = Cell(store, kind, conditions=conditions()), time.monotonic()
        while cell.kills < kills:
            cell.runs += 1
            self._run(cell, kills)
            print(asdict(cell), file=sys.stderr, flush=True)
        cell.wall_s = time.monotonic() - started - cell.runs * self.undisturbed_s
        return cell

    def _run(self, cell: Cell, kills: int) -> None:
        """One run to its end, killed on the way; then everything that was promised is checked."""
        key, killed = f"{cell.store}-{cell.kind}-{cell.runs}", list[float]()
        store = self._store(cell.store, key)
        done, committed, moved_at = False, 0, time.monotonic()
        while not done:
            driver = self._start(cell.store, key)
            cell.drivers += 1
            while driver.poll() is None:
                found = self._pause(driver, store, cell)
                if found > committed:
                    committed, moved_at = found, time.monotonic()
                if time.monotonic() > moved_at + STANDSTILL_S:
                    raise SystemExit(f"{key} committed nothing for {STANDSTILL_S:.0f} s")
                at = time.time()
                if cell.kills < kills and driver.poll() is None and self._kill(cell.kind, driver, store):
                    cell.kills += 1
                    killed.append(at)
            done = driver.returncode == 0
        assert self._texts(store) == self._reference, f"{key}: texts differ from the undisturbed run's"
        self._account(store, cell, killed)

    def _account(self, store: Store, cell: Cell, killed: list[float]) -> None:
        plan = load_plan(store)
        assert plan is not None
        starts = [read_starts(store, shard.shard) for shard in plan.shards]
        lost = [one for each in starts for one, other in pairwise(each) if one.incarnation != other.incarnation]
        oldest: dict[str, float] = {}
        for start in lost:
            oldest[start.incarnation] = min(start.started, oldest.get(start.incarnation, start.started))
        kills = len(killed)
        in_flight = IN_FLIGHT * (1 if cell.kind == "actor" else ENGINES)
        # A store that comes back late may cost a driver besides the kill itself.
        allowed = in_flight * kills * (2 if cell.kind in ("both", "store") else 1)
        assert len(lost) <= allowed, f"{len(lost)} starts lost in {kills} kills"
        # One that never hits a shard would show nothing.
        assert lost or kills < 10 or cell.kind == "store", f"{kills} kills, and no start lost: they came too early"
        cell.lost_starts += len(lost)
        cell.redone_s += sum(next((at for at in killed if at >= since), since) - since for since in oldest.values())
        if kills:
            cell.worst_lost.append(len(lost) / kills)

    def _pause(self, driver: subprocess.Popen[str], store: Store, cell: Cell) -> int:
        """Let the driver work for a while once it has engines, and read what there is meanwhile -> samples there at
        most. Without that while, an engine would be killed whenever it starts, with the same shard in it, and its rows
        be taken for the cause."""
        left_s, last, most = self._draw.uniform(0.2, 4.0), time.monotonic(), 0
        until = last + STANDSTILL_S
        while driver.poll() is None and left_s > 0 and last < until:
            now = time.monotonic()
            left_s, last = left_s - (now - last if working(driver.pid, store) else 0.0), now
            with contextlib.suppress(StorageError):
                most = max(most, len(check(store)))
                cell.readings += 1
            time.sleep(0.2)
        return most

    def _kill(self, kind: str, driver: subprocess.Popen[str], store: Store) -> bool:
        if kind == "store":
            self._server.stop()
            time.sleep(self._draw.uniform(0.5, 8.0))
            self._server.start()
            return True
        victims = working(driver.pid, store)
        if kind in ("actor", "both"):
            if not victims:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                self._draw.choice(victims).kill()
        if kind == "both":
            time.sleep(self._draw.uniform(0.0, 1.0))
        if kind in ("driver", "both"):
            driver.kill()
            driver.wait()  # its engines may live on for some seconds, beside those of the next driver
        return True

    def _undisturbed(self) -> Store:
        driver = self._start("disk", "reference")
        _, err = driver.communicate()
        assert driver.returncode == 0, err
        return self._store("disk", "reference")

    def _start(self, store: str, key: str) -> subprocess.Popen[str]:
        job: dict[str, Any] = {
            "workload": "soak",
            "source": {"path": "rows.jsonl"},
            "tasks": {
                "default": {"sampling": {"max_tokens": 40, "temperature": 1.0, "n": SAMPLES, "ignore_eos": True}}
            },
            "model": {"path": str(self._model), "dtype": "float64"},
            "engine": {"device": "cpu", "threads": 1, "max_num_seqs": 8},
            "cluster": {"workers": ENGINES, "shards_in_flight": IN_FLIGHT},
            "shard": {"max_rows": 6},
            "sink": {"path": self._root(store)},
            "limits": {"max_engine_deaths": 1000},
        }
        if store == "s3":
            job["storage"] = self._server.storage.model_dump(mode="json", exclude_none=True)
        path = self._folder / f"{store}.yaml"
        path.write_text(yaml.safe_dump(job), encoding="utf-8")
        command = [sys.executable, "-m", "jobs", "run", str(path), "--run", key]
        log = (self._folder / "drivers.log").open("a", encoding="utf-8")
        self._drivers.append(subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, text=True))
        return self._drivers[-1]

    def _root(self, store: str) -> str:
        return str(self._folder / "output") if store == "disk" else f"s3://{self._server.server.bucket}/soak"

    def _store(self, store: str, key: str) -> Store:
        return open_store(f"{self._root(store)}/soak-{key}", self._server.storage if store == "s3" else Storage())

    def _texts(self, store: Store) -> dict[str, str]:
        texts = check(store)
        assert len(texts) == ROWS * SAMPLES, f"{len(texts)} of {ROWS * SAMPLES} samples are there"
        return texts


def working(driver: int, store: Store) -> list[psutil.Process]:
    """The engine processes of a driver that have loaded and warmed up: their account tells their pid."""
    pids: set[int] = set()
    with contextlib.suppress(StorageError):
        pids = {snapshot["pid"] for snapshot in engine_snapshots(store) if snapshot["part"] not in STARTING}
    with contextlib.suppress(psutil.Error):
        return [each for each in psutil.Process(driver).children(recursive=True) if each.pid in pids]
    return []


def check(store: Store) -> dict[str, str]:
    """Read the dataset as a stranger would: `row_id` -> text. Each file must be whole, and no sample there twice."""
    texts: dict[str, str] = {}
    keys = [stat.key for stat in store.list(DATA_DIR)]
    for key, footer in zip(keys, read_footers(store, keys), strict=True):
        rows = pq.read_table(io.BytesIO(store.get(key)), columns=["row_id", "text"]).to_pylist()
        found = f"{key} has {len(rows)} rows of {footer.num_rows * SAMPLES}: {footer.usage}"
        assert len(rows) == footer.usage.samples_ok == footer.num_rows * SAMPLES, found
        for row in rows:
            assert row["row_id"] not in texts, f"{row['row_id']} is there twice"
            texts[row["row_id"]] = row["text"]
    return texts


def report(where: dict[str, Any], seed: int, undisturbed_s: float, cells: list[Cell]) -> str:
    """Markdown."""
    lines = [
        "# Runs that are killed again and again",
        "",
        "Measured by `benchmarks/soak.py`, which says what each column means. No sample was lost or doubled, no reader",
        "saw part of a shard, and every run ended with the texts of an undisturbed one.",
        "",
        *told(where),
        f"- beside it ran: {where['beside']}",
        f"- seed {seed}; {sum(cell.kills for cell in cells)} kills; an undisturbed run takes {undisturbed_s:.0f} s",
        "",
        "| store | killed | kills | runs | drivers | lost starts per kill, worst run | redone s | wall s | commit |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for cell in cells:
        lost = f"{cell.lost_starts / cell.kills:.1f}, {max(cell.worst_lost, default=0.0):.1f}"
        times = f"{cell.redone_s / cell.kills:.2f} | {cell.wall_s / cell.kills:.1f}"
        counts = f"{cell.kills} | {cell.runs} | {cell.drivers}"
        commit = (cell.conditions["git_commit"] or "unknown")[:7]
        lines.append(f"| {cell.store} | {cell.kind} | {counts} | {lost} | {times} | {commit} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the 200 kills")
    parser.add_argument("--beside", default="nothing", help="what else ran on the machine meanwhile, for the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--go-on", action="store_true", help="keep what the results have, and do the rest")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and the Markdown")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    written = arguments.results / "soak.json"
    cells = [Cell(**cell) for cell in json.loads(written.read_text())["cells"]] if arguments.go_on else []
    where = conditions() | {"beside": arguments.beside}
    folder = Path(tempfile.mkdtemp(prefix="soak-"))  # it stays if something was wrong, to be looked at
    server = Server(folder / "s3")
    soak = Soak(folder, server, arguments.seed)
    try:
        soak.begin()
        done = {(cell.store, cell.kind) for cell in cells}
        for store, kind in [(store, kind) for store, kinds in KINDS.items() for kind in kinds]:
            if (store, kind) in done:
                continue
            cells.append(soak.play(store, kind, max(1, round(arguments.share * KILLS[kind]))))
            found = {"conditions": where, "seed": arguments.seed, "cells": [asdict(cell) for cell in cells]}
            written.write_text(json.dumps(found, indent=1) + "\n")
            written.with_suffix(".md").write_text(report(where, arguments.seed, soak.undisturbed_s, cells))
    finally:
        soak.end()
        server.stop()
    shutil.rmtree(folder)
    print(written.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
