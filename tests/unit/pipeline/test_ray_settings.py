"""The Ray that is started here asks for its token, unless the user has said otherwise and is told what that means."""

from __future__ import annotations

import os

import pytest
import ray

from pipeline.local_ray import AUTH_MODE, start_local

MODES = [(None, "token", 0), ("token", "token", 0), ("disabled", "disabled", 1)]


@pytest.mark.parametrize(("said", "mode", "warned"), MODES)
def test_token_authentication_is_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str | None, mode: str, warned: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != AUTH_MODE}
    monkeypatch.setattr(os, "environ", environment | ({} if said is None else {AUTH_MODE: said}))
    seen: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **_: seen.append(os.environ[AUTH_MODE]))
    start_local(1)
    assert seen == [mode]
    assert capsys.readouterr().err.count("whoever reaches this machine's ports may run code here") == warned
