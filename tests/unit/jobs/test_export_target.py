"""What `draftfleet export` will not write over."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import UsageError
from jobs.export import refuse_loss


def test_a_file_that_exists_is_kept_unless_it_may_go(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    refuse_loss(target, overwrite=False)
    target.write_text("mine")
    with pytest.raises(UsageError, match=r"rows\.jsonl exists; .* --overwrite"):
        refuse_loss(target, overwrite=False)
    refuse_loss(target, overwrite=True)


def test_nothing_in_a_run_is_ever_written_over(tmp_path: Path) -> None:
    (tmp_path / "w-1" / "_plan").mkdir(parents=True)
    (tmp_path / "w-1" / "_plan" / "CURRENT").write_text("{}")
    for name in ("data/default-000000.parquet", "_manifest.json", "new.jsonl"):
        with pytest.raises(UsageError, match="lies in the folder of a run"):
            refuse_loss(tmp_path / "w-1" / name, overwrite=True)


def test_a_device_is_no_file() -> None:
    with pytest.raises(UsageError, match="/dev/null is no file"):
        refuse_loss(Path("/dev/null"), overwrite=True)
