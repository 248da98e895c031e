"""Where runs leave what they learned of drafting, and find what earlier ones did.

    <draft.policy_store>/<target's hash>/<run>-<hash of its folder>.json     one object per run, written when it is done

A run writes its own object only, so nothing is read, changed and written back, and a run that is finalized twice is
still counted once. What a run starts from is a fold over the objects of its target: the newest counts whole, older ones
less and less.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

from configs.errors import ConfigError
from pipeline.policy import Policy
from pipeline.store.base import Store

DECAY = 0.7
"""What each newer run leaves of an older one."""
MOST_RUNS = 20
"""The newest; the twentieth counts for a thousandth."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one run taught."""

    run: str
    folder: str
    """Its URL: with the name, its identity."""
    target_sha256: str
    finished: float
    """Seconds since the epoch."""
    policy: Policy

    @property
    def key(self) -> str:
        folder = hashlib.sha256(self.folder.encode()).hexdigest()[:8]
        return f"{_prefix(self.target_sha256)}{self.run}-{folder}.json"

    def to_bytes(self) -> bytes:
        about = {"version": VERSION, "run": self.run, "folder": self.folder, "target_sha256": self.target_sha256}
        return json.dumps({**about, "finished": self.finished, **self.policy.to_json()}).encode()


class PolicyStore:
    """A folder or an S3 prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, lesson: Lesson) -> None:
        """Once more is the same as once."""
        self._store.put(lesson.key, lesson.to_bytes())

    def lessons(self, target_sha256: str) -> list[Lesson]:
        """Of this target, the newest first.

        Raises:
            ConfigError: an object there is none, or is of another target.
        """
        keys = [stat.key for stat in self._store.list(_prefix(target_sha256)) if stat.key.endswith(".json")]
        found = [self._read(key, target_sha256) for key in keys]
        return sorted(found, key=lambda lesson: (-lesson.finished, lesson.key))

    def policy(self, target_sha256: str) -> tuple[Policy, list[str]]:
        """What to start from, and the runs that it comes from, the newest first."""
        lessons = self.lessons(target_sha256)[:MOST_RUNS]
        folded = (lesson.policy.scaled(DECAY**age) for age, lesson in enumerate(lessons))
        return sum(folded, Policy()), [lesson.run for lesson in lessons]

    def _read(self, key: str, target_sha256: str) -> Lesson:
        where = f"{self._store.url}/{key}"
        try:
            data: dict[str, Any] = json.loads(self._store.get(key))
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}, this program writes {VERSION}")
            about = (data["run"], data["folder"], data["target_sha256"], float(data["finished"]))
            lesson = Lesson(*about, Policy.from_json(data))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is no drafting policy ({error!r}); remove it from the policy store") from error
        if lesson.target_sha256 != target_sha256:
            raise ConfigError(
                f"{where} was learned with another target (weights sha256 {lesson.target_sha256[:12]}, this job's is "
                f"{target_sha256[:12]}); remove it, or name another draft.policy_store"
            )
        return lesson


def lesson_of(run: str, folder: str, target_sha256: str, policy: Policy) -> Lesson:
    """What a run that is done now taught."""
    return Lesson(run, folder, target_sha256, time.time(), policy)


def _prefix(target_sha256: str) -> str:
    return f"{target_sha256[:16]}/"
