"""What a person hears of an engine actor's failure, of which Ray keeps the text."""

from __future__ import annotations

import traceback

import pytest
from ray.exceptions import RayError

from configs.errors import ConfigError, StorageError
from jobs.driver import told


def as_ray_tells(error: Exception) -> RayError:
    """The traceback as text in the message, and an exception without one as the cause."""
    told = RayError(
        "The actor died because of an error in its creation task\n" + "".join(traceback.format_exception(error))
    )
    told.__cause__ = Exception()
    return told


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def test_our_own_words_come_through() -> None:
    error = told(as_ray_tells(raised(ConfigError("copy the checkpoint again"), OSError("header too small"))))
    assert str(error).startswith("an engine actor failed: copy the checkpoint again\n")
    assert "draftfleet resume" in str(error)


def test_a_store_that_failed_is_told_as_such() -> None:
    error = told(as_ray_tells(raised(StorageError("cannot list _attempts: SlowDown"))))
    assert isinstance(error, StorageError)
    assert str(error).startswith("an engine actor failed: cannot list _attempts: SlowDown\n")


def test_of_foreign_errors_the_first_is_told() -> None:
    error = told(as_ray_tells(raised(RuntimeError("UDF failed"), KeyError("nope"))))
    assert str(error).startswith("an engine actor failed: KeyError: 'nope'\n")


def test_an_error_of_ours_that_survived_is_raised_as_it_is() -> None:
    error = RayError("task failed")
    error.__cause__ = StorageError("the disk is full")
    assert told(error) is error.__cause__


def test_a_message_without_a_traceback_stays() -> None:
    assert "the node ran out of memory" in str(told(RayError("the node ran out of memory")))
