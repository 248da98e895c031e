"""Text comes out as the tokenizer decodes the whole, and stop strings are found at the token that completes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import EOS, VOCAB, tiny_tokenizer

from configs.errors import ConfigError
from workers.detokenizer import Detokenizer, StopFinder, cut_before

DETOKENIZER = Detokenizer(tiny_tokenizer())
IDS = {token: i for i, token in enumerate(VOCAB)}
LIKELY = [IDS[token] for token in ("a", "b", "c", "ab", "bc", "ca", "Ġ", "Ġa", "Ã", "©", "â", "Ģ")]
"""Few tokens, so that stop strings occur; the last four are pieces of characters."""


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(LIKELY), max_size=30),
    st.lists(st.text("abc é", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_a_stop_string_is_found_at_the_token_that_completes_it(tokens: list[int], stops: list[str]) -> None:
    finder = StopFinder(DETOKENIZER, stops)
    for end, token in enumerate(tokens, start=1):
        text = DETOKENIZER.decode(tokens[:end])
        found = finder.push(token)
        assert found == any(stop in text for stop in stops)
        if found:
            assert not any(stop in cut_before(text, stops) for stop in stops)
            return


def test_the_earliest_stop_string_cuts() -> None:
    assert cut_before("one two three", ["three", "two"]) == "one "
    assert cut_before("one two three", ["four"]) == "one two three"
    assert cut_before("one", []) == "one"


def test_special_tokens_leave_no_text() -> None:
    assert DETOKENIZER.decode([IDS["a"], EOS]) == "a"


def test_broken_characters_are_told_from_written_ones() -> None:
    whole, broken = [IDS["Ã"], IDS["©"]], [IDS["Ã"], IDS["a"]]
    assert DETOKENIZER.decode(whole) == "é"
    assert not DETOKENIZER.is_repaired(whole, "é")
    text = DETOKENIZER.decode(broken)
    assert "\ufffd" in text
    assert DETOKENIZER.is_repaired(broken, text)


def test_a_replacement_character_that_the_model_wrote_is_no_repair() -> None:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE(vocab={"ï": 0, "¿": 1, "½": 2}, merges=[]))
    tokenizer.decoder = ByteLevel()
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.decode([0, 1, 2]) == "\ufffd"
    assert not detokenizer.is_repaired([0, 1, 2], "\ufffd")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"add tokenizer\.json"):
        Detokenizer.load(tmp_path)
