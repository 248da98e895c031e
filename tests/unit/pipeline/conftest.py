"""What the planning tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_chat_model import save_small_chat_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a tokenizer and a ChatML template; its context has 512 tokens."""
    return save_small_chat_model(tmp_path_factory.mktemp("chat-model"))
