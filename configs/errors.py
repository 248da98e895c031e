"""Everything Draftfleet raises on purpose.

    DraftfleetError
    ├── ConfigError          the job file (exit code 2)
    ├── UsageError           the command line (exit code 2)
    ├── SourceError          the input as a whole: missing, unreadable, clashing columns (exit code 2)
    ├── StorageError         the store: credentials, bucket, permission, disk (exit code 2 before the start, then 5)
    ├── RunConflict          the run exists and differs, or another driver holds it (exit code 2)
    ├── RunFailed            the run gave up by itself; what is committed stays (exit code 1)
    │   └── TooManyErrors    more rows fail than limits.max_error_rate allows (exit code 3)
    ├── RowError             one row; never stops a job (becomes an error row)
    └── EngineError          the engine as a whole; its actor is replaced

Every message names the thing (file, row, key) and the next step. Foreign exceptions are translated
once, at the edge that met them.
"""

from __future__ import annotations


class DraftfleetError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(DraftfleetError):
    """The job file is wrong: unknown key, bad value, missing section."""

    exit_code = 2


class UsageError(DraftfleetError):
    """The command was called with arguments that cannot work."""

    exit_code = 2


class SourceError(DraftfleetError):
    """The input as a whole cannot be used: missing, unreadable, or its columns clash with ours."""

    exit_code = 2


class StorageError(DraftfleetError):
    """The store refused or failed: wrong key, missing bucket, no permission, disk full."""

    exit_code = 2


class RunConflict(DraftfleetError):
    """The run already exists and differs from the job, or another driver is working on it."""

    exit_code = 2


class RunFailed(DraftfleetError):
    """The run gave up by itself, on a limit of the job."""


class TooManyErrors(RunFailed):
    """More samples fail than the job allows; going on would waste money."""

    exit_code = 3


class RowError(DraftfleetError):
    """One row cannot be served. `stage` and `code` are stable words for programs, the message is for people.

    `engine_ns` is the busy time that the engine had already spent on the sample.
    """

    def __init__(self, code: str, message: str, *, stage: str, retryable: bool = False, engine_ns: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.stage = stage
        self.retryable = retryable
        self.engine_ns = engine_ns

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_row_error, (self.code, self.message, self.stage, self.retryable, self.engine_ns)


def _rebuild_row_error(code: str, message: str, stage: str, retryable: bool, engine_ns: int) -> RowError:
    return RowError(code, message, stage=stage, retryable=retryable, engine_ns=engine_ns)


class EngineError(DraftfleetError):
    """The engine itself is broken; nothing it still holds will finish. The actor that owns it must end."""
