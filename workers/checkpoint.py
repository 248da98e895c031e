"""Weights of a Hugging Face folder, tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from configs.errors import ConfigError
from workers.models import weight_files


class Checkpoint:
    """Reads single tensors in the asked precision, so that never more than one is held twice."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        self._folder = folder
        self._dtype = dtype
        self._device = device
        self._file_of = {name: path for path in weight_files(folder) for name in _names(path)}

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> Tensor:
        """One tensor, cast and on the device.

        Raises:
            ConfigError: the checkpoint lacks it.
        """
        if name not in self._file_of:
            raise ConfigError(f"{self._folder} has no tensor {name!r}; the checkpoint is incomplete, save it again")
        with safe_open(self._file_of[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.to(device=self._device, dtype=self._dtype)

    def stacked(self, *names: str) -> Tensor:
        """Several tensors joined along their output dimension: one product instead of several."""
        return torch.cat([self.tensor(name) for name in names])


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors: {error}; copy the checkpoint again") from error
