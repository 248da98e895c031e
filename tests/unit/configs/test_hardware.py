"""Profiles of hardware for simulations."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.hardware import hardware_names, load_hardware
from workers.draft_length.cost import LinearCost, RoundShape

OWN = """
description: mine
source: measured
fixed_s: 0.01
per_seq_s: 0.0
per_row_s: {0: 1.0e-3, 8: 2.0e-3}
per_kv_token_s: 0.0
per_prefill_token_s: 0.0
drafters: {eagle3: {per_step_s: 0.001}}
"""


@pytest.mark.parametrize("name", hardware_names())
def test_a_profile_says_where_it_comes_from(name: str) -> None:
    profile = load_hardware(name)
    assert profile.source
    assert LinearCost.of(profile)(RoundShape(1, 100)) > 0


def test_a_profile_of_ones_own_prices_rows_by_their_number(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OWN)
    cost = LinearCost.of(load_hardware(str(file)))
    assert cost(RoundShape(8, 0)) == pytest.approx(0.01 + 8 * 1e-3)
    assert cost(RoundShape(12, 0)) == pytest.approx(0.01 + 8 * 1e-3 + 4 * 2e-3)
    drafted = {"eagle3": [2.0, 2.0]}
    assert cost(RoundShape(2, 0, 0, drafted)) == pytest.approx(0.01 + 6 * 1e-3 + 2 * 1e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OWN.replace("0: 1.0e-3, ", ""), "per_row_s: .*no price from 0 rows on"),
        (OWN.replace("8: 2.0e-3", "8: -1.0"), "cannot be negative"),
        (OWN + "speed: 9\n", "speed"),
        ("description: mine\n", "fixed_s"),
    ],
)
def test_what_is_wrong_with_a_profile_is_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_hardware(str(file))


def test_a_misspelt_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean h100-llama-3\.1-8b"):
        load_hardware("h100-llama-8b")
