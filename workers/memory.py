"""How much memory a cache may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_SHARE = 0.5
"""Of what is free; the rest is for activations, the page cache and everybody else."""
_CGROUP = Path("/sys/fs/cgroup")


def default_kv_tokens(bytes_per_token: int, *, device: torch.device, threads: int) -> int:
    """KV cache size in tokens when the job names none. On a CPU, as many engines as fit on the cores that this process
    may use share the memory."""
    if device.type == "cuda":
        import torch  # a driver, which asks for `available_bytes` only, does without

        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _SHARE) // bytes_per_token
    engines = max(1, len(os.sched_getaffinity(0)) // threads)
    return int(available_bytes() * _SHARE / engines) // bytes_per_token


def available_bytes() -> int:
    """Memory of this machine, or of the container it runs in, that can be had without swapping."""
    machine: int = psutil.virtual_memory().available
    container = _container_bytes(_CGROUP)
    return machine if container is None else min(machine, container)


def _container_bytes(cgroup: Path) -> int | None:
    """What the control group (version 2) leaves; None if it sets no limit."""
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not (limit.is_file() and used.is_file()) or limit.read_text().strip() == "max":
        return None
    return max(0, int(limit.read_text()) - int(used.read_text()))
