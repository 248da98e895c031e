"""Where everything of a run lies. Keys are relative to the run's folder; `data/` alone is the dataset.

    data/<task>-<shard>.parquet     ok rows of a whole shard; the object is the commit record
    errors/<task>-<shard>-<writer>.parquet  its error rows; the data object's footer names the one that counts
    errors/rejected.parquet         rows that failed while planning
    _plan/CURRENT                   {"plan": "<hash>"}; created once, never changed
    _plan/<hash>/plan.json          the resolved job, fingerprints, carried schema, counts, shard index
    _plan/<hash>/part-00000.parquet input rows, one row group per shard
    _plan/<hash>/rejected.parquet   rows that failed while planning, as error rows
    _attempts/<shard>/<n>.json      put before a shard starts
    _superseded/<kind>/<file>       what `resume --retry-errors` replaced
    _ledger/<incarnation>.json      an engine's life, overwritten as it goes
    _ledger/driver-<attempt>.json   one driver's work on the run
    _policy/start.json              what the run's first engines knew of drafting, and from which runs
    _policy/<attempt>.json          the same, with what the run had taught before this attempt
    _traces/<incarnation>-<n>.parquet  an engine's rounds, if engine.trace_rounds
    _lease.json                     who is driving, with a heartbeat
    _stop.json                      somebody asked the run to stop
    _manifest.json                  the run is complete

What starts with an underscore is Draftfleet's own; readers of the dataset need none of it.
"""

from __future__ import annotations

import re

CURRENT = "_plan/CURRENT"
LEASE = "_lease.json"
STOP = "_stop.json"
MANIFEST = "_manifest.json"
DATA_DIR = "data/"
ERRORS_DIR = "errors/"
LEDGER_DIR = "_ledger/"
TRACES_DIR = "_traces/"
POLICY_START = "_policy/start.json"
ATTEMPTS_DIR = "_attempts/"

REJECTED_KEY = "errors/rejected.parquet"

_SHARD_FILE = re.compile(r"^(?P<task>[a-z][a-z0-9_-]*)-(?P<shard>\d{6})\.parquet$")


def shard_file(task: str, shard: int) -> str:
    """`code-000012.parquet`"""
    return f"{task}-{shard:06d}.parquet"


def data_key(task: str, shard: int) -> str:
    return DATA_DIR + shard_file(task, shard)


def errors_key(task: str, shard: int, writer: str) -> str:
    """Unique per attempt: an engine that loses the race for the data object leaves only an unreferenced file."""
    return f"{ERRORS_DIR}{task}-{shard:06d}-{writer}.parquet"


def superseded_key(key: str, writer: str) -> str:
    """Where an object of `data/` or `errors/` is kept: `_superseded/data/code-000012-<who wrote it>.parquet`"""
    stem = key.removesuffix(".parquet").removesuffix(f"-{writer}")
    return f"_superseded/{stem}-{writer}.parquet"


def shard_number(key: str) -> int | None:
    """The shard of a key in `data/`, or None if it is not one of ours."""
    found = _SHARD_FILE.match(key.removeprefix(DATA_DIR))
    return int(found["shard"]) if found else None


def plan_dir(plan_hash: str) -> str:
    return f"_plan/{plan_hash}/"


def plan_part(plan_hash: str, part: int) -> str:
    return f"{plan_dir(plan_hash)}part-{part:05d}.parquet"


def plan_json(plan_hash: str) -> str:
    return f"{plan_dir(plan_hash)}plan.json"


def attempts_dir(shard: int) -> str:
    return f"{ATTEMPTS_DIR}{shard:06d}/"


def attempt_key(shard: int, number: int) -> str:
    return f"{attempts_dir(shard)}{number}.json"


def plan_rejected(plan_hash: str) -> str:
    return f"{plan_dir(plan_hash)}rejected.parquet"


def policy_key(attempt: int) -> str:
    return f"_policy/{attempt}.json"


def trace_key(incarnation: str, number: int) -> str:
    return f"{TRACES_DIR}{incarnation}-{number:05d}.parquet"


def ledger_key(incarnation: str) -> str:
    return f"{LEDGER_DIR}{incarnation}.json"
