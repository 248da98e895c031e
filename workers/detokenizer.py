"""Tokens back to text: whole at the end, and piece by piece only where a stop string must be found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from configs.errors import ConfigError

_REPLACEMENT = "\ufffd"
_MAX_PENDING = 16
"""Tokens that may wait for a character to become whole. No character needs as many; beyond it, the bytes are not
UTF-8."""


class Detokenizer:
    """A model's tokenizer, read backwards. Special tokens leave no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Detokenizer:
        """From `tokenizer.json`, or through transformers for a tokenizer of an older format.

        Raises:
            ConfigError: the folder has no tokenizer.
        """
        if (path := folder / "tokenizer.json").is_file():
            return cls(Tokenizer.from_file(str(path)))
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer)
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{folder} has no tokenizer that can be read: {error}; add tokenizer.json") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, with U+FFFD where they are not valid UTF-8."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def is_repaired(self, token_ids: Sequence[int], text: str) -> bool:
        """Whether `text`, decoded from these tokens, holds a U+FFFD that the model did not write."""
        if _REPLACEMENT not in text:
            return False
        if not isinstance(self._tokenizer.decoder, ByteLevel):
            return True
        return not _is_utf8(b"".join(self._bytes_of(token_id) for token_id in token_ids))

    def _bytes_of(self, token_id: int) -> bytes:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
        token = self._tokenizer.id_to_token(token_id) or ""
        return bytes(byte_of[char] for char in token) if all(char in byte_of for char in token) else token.encode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def cut_before(text: str, stops: Sequence[str]) -> str:
    """Text up to the first stop string, whichever of them comes first."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


class StopFinder:
    """Finds stop strings in a growing output, across token borders.

    A token is decoded together with those since the last whole character, since its text may depend on them; of the
    text before, only what a stop string could begin in is kept.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._overlap = max(len(stop) for stop in stops) - 1
        self._tail = ""
        self._token_ids: list[int] = []
        """The tokens of the last whole piece, then those not yet taken into the tail."""
        self._num_taken = 0

    def push(self, token_id: int) -> bool:
        """Whether the text, with this token, holds a stop string."""
        self._token_ids.append(token_id)
        before = self._detokenizer.decode(self._token_ids[: self._num_taken])
        text = self._tail + self._detokenizer.decode(self._token_ids)[len(before) :]
        if any(stop in text for stop in self._stops):
            return True
        num_pending = len(self._token_ids) - self._num_taken
        if not text.endswith(_REPLACEMENT) or num_pending >= _MAX_PENDING:
            self._tail = text[-self._overlap :] if self._overlap else ""
            self._token_ids = self._token_ids[self._num_taken :]
            self._num_taken = num_pending
        return False
