from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_llama import save_tiny_llama


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
