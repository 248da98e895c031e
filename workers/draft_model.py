"""A separate model that drafts: where it is, and whether it speaks the target's tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from configs.errors import ConfigError
from configs.job import Draft
from workers.architecture import Architecture, read_architecture
from workers.models import resolve


def draft_model_of(draft: Draft, target_folder: Path, target: Architecture) -> tuple[Path, Architecture] | None:
    """Folder and shape of a job's draft model; None without one.

    Raises:
        ConfigError: it cannot be read, or has another tokenizer than the target.
    """
    if draft.model is None:
        return None
    folder = resolve(draft.model)
    arch = read_architecture(folder)
    if arch.vocab_size < target.vocab_size:
        raise ConfigError(
            f"draft.model {draft.model}: vocab_size is {arch.vocab_size}, the target's {target.vocab_size}; "
            "a draft model needs the target's tokenizer"
        )
    ours, theirs = (_vocabulary(each) for each in (target_folder, folder))
    if different := sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)):
        token = different[0]
        raise ConfigError(
            f"draft.model {draft.model}: token {token!r} has id {theirs.get(token)}, in the target {ours.get(token)}; "
            "a draft model needs the target's tokenizer"
        )
    return folder, arch


def _vocabulary(folder: Path) -> dict[str, int]:
    path = folder / "tokenizer.json"
    try:
        return dict(Tokenizer.from_file(str(path)).get_vocab())
    except Exception as error:  # tokenizers raises nothing narrower
        raise ConfigError(f"{path} cannot be read ({error}); copy the model's tokenizer there") from None
