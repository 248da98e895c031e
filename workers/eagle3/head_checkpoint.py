"""Weights of a draft head, by EAGLE's own names whoever published it.

fc.weight                      three hidden states of the target -> one feature
midlayer.*                     the decoder layer; `layers.0.*` with speculators and ModelOpt
norm.weight, lm_head.weight    over the draft vocabulary
d2t [draft vocab]              target id - draft id of each draft token
t2d [target vocab]             which target tokens the draft vocabulary has; follows from d2t, so it is not read
embed_tokens.weight            only where the head does not use the target's
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from configs.errors import ConfigError

_PICKLED = "pytorch_model.bin"
_PREFIXES = ("model.", "draft_model.", "eagle_module.")
_LAYER = ("midlayer.", "layers.0.", "decoder.")


class HeadCheckpoint:
    """A head's tensors, read once; heads are small."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ConfigError if there are no weights that can be read."""
        self._folder = folder
        self._dtype = dtype
        self._device = device
        self._tensors = {_own_name(name): tensor for name, tensor in _read(folder).items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor, cast and on the device.

        Raises:
            ConfigError: it is missing, or of another shape than the config says.
        """
        if name not in self._tensors:
            raise ConfigError(f"{self._folder} has no tensor {name!r}; it is no whole EAGLE-3 head")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._folder}: {name} is {list(tensor.shape)}, by its config and target it should be {list(shape)}; "
                "the head is for another model"
            )
        return tensor.to(device=self._device, dtype=tensor.dtype if tensor.dtype == torch.int64 else self._dtype)

    def target_ids(self, draft_vocab_size: int, vocab_size: int) -> Tensor:
        """[draft vocab] the target's id of each draft token.

        Raises:
            ConfigError: d2t is missing though the vocabularies differ, or leads outside of the target's.
        """
        ids = torch.arange(draft_vocab_size, device=self._device)
        if "d2t" not in self and draft_vocab_size == vocab_size:
            return ids
        ids = ids + self.tensor("d2t", draft_vocab_size).to(torch.int64)
        if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) != len(ids):
            raise ConfigError(
                f"{self._folder}: d2t does not lead to {draft_vocab_size} different tokens of 0..{vocab_size - 1}; "
                "the head is damaged or for another model"
            )
        return ids


def head_files(folder: Path) -> list[Path]:
    """The files of its weights; older heads come as a pickle.

    Raises:
        ConfigError: there are none.
    """
    files = sorted(folder.glob("*.safetensors")) or [path for path in [folder / _PICKLED] if path.is_file()]
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors and no {_PICKLED}; draft.path must be a head's folder")
    return files


def _read(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in head_files(folder):
        try:
            # A pickle may run code; torch's own reader of weights takes nothing but tensors.
            is_pickled = file.name == _PICKLED
            tensors |= torch.load(file, map_location="cpu", weights_only=True) if is_pickled else load_file(file)
        except (SafetensorError, OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise ConfigError(f"{file} cannot be read: {error}; copy the head again") from error
    return tensors


def _own_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for layer in _LAYER:
        if name.startswith(layer):
            return "midlayer." + name.removeprefix(layer)
    return name
