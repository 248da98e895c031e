"""A Ray that is started here without its token is told of."""

from __future__ import annotations

import os

import pytest
import ray

from pipeline.local_ray import AUTH_MODE, start_local


@pytest.mark.parametrize(("mode", "told"), [("token", 0), ("disabled", 1), (None, 1)])
def test_open_doors_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str | None, told: int
) -> None:
    """`mode`: as it is once Ray has started."""
    environment = {name: value for name, value in os.environ.items() if name != AUTH_MODE}
    monkeypatch.setattr(os, "environ", environment | ({} if mode is None else {AUTH_MODE: mode}))
    monkeypatch.setattr(ray, "init", lambda **_: None)
    start_local(1)
    assert capsys.readouterr().err.count("whoever reaches this machine's ports may run code here") == told
