"""What rounds take on some hardware: `configs/hardware/*.yaml`, for simulations."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import Field, ValidationError, field_validator

from configs.document import parse
from configs.errors import ConfigError
from configs.job import Section
from configs.nearest import did_you_mean

FOLDER = Path(__file__).parent / "hardware"


class DrafterPrices(Section):
    """Seconds of a drafter's part of a round."""

    per_step_s: float = Field(ge=0.0, description="per draft depth, for all sequences together")
    per_row_s: float = Field(0.0, ge=0.0, description="per draft")


class HardwareProfile(Section):
    """Seconds of what is in a round."""

    description: str
    source: str = Field(description="where the numbers come from")
    fixed_s: float = Field(ge=0.0, description="of every round")
    per_seq_s: float = Field(ge=0.0, description="per sequence, whatever it drafts")
    per_row_s: dict[int, float] = Field(description="per verified row, by the number of rows from which on it holds")
    per_kv_token_s: float = Field(ge=0.0, description="per token in the cache of the sequences")
    per_prefill_token_s: float = Field(ge=0.0)
    drafters: dict[str, DrafterPrices] = Field(description="drafter -> its prices")

    def to_yaml(self) -> str:
        """As `load_hardware` reads it."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=120)

    @field_validator("per_row_s")
    @classmethod
    def _begins(cls, prices: dict[int, float]) -> dict[int, float]:
        if 0 not in prices:
            raise ValueError("it has no price from 0 rows on")
        if min(prices.values()) < 0 or min(prices) < 0:
            raise ValueError("rows and prices cannot be negative")
        return prices


def hardware_names() -> list[str]:
    """Profiles that come with Draftfleet."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_hardware(name_or_file: str) -> HardwareProfile:
    """A profile by its name, or from a file of one's own.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    is_file = "/" in name_or_file or name_or_file.endswith(".yaml")
    path = Path(name_or_file) if is_file else FOLDER / f"{name_or_file}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        meant = did_you_mean(name_or_file, hardware_names())
        raise ConfigError(f"no hardware profile {name_or_file} ({error.strerror}){meant}") from error
    try:
        return HardwareProfile.model_validate(parse(text, str(path)).data)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"{path} is no hardware profile: {told}") from error
