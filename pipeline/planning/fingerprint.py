"""What identifies a plan's output: the files it was made from, the model, the tokenizer, the chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.errors import ConfigError
from configs.fingerprint import semantic_fingerprint
from configs.job import Job
from pipeline.source.opening import open_source
from workers.models import resolve, weights_sha256

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
TEMPLATE_FILE = "chat_template.jinja"


def fingerprint_now(
    job: Job, base_dir: Path, model_folder: Path | None, sources: Sequence[Mapping[str, object]] | None = None
) -> dict[str, str]:
    """See `pipeline.plan.current_fingerprint`."""
    folder = model_folder or resolve(job.model.path)
    if sources is None:
        sources = [file.identity() for file in open_source(job, base_dir).files]
    return fingerprint_of(job, sources, folder, read_chat_template(job, base_dir))


def fingerprint_of(
    job: Job, sources: Sequence[Mapping[str, object]], model_folder: Path, chat_template: str | None
) -> dict[str, str]:
    """The semantic fingerprint. `sources`: the identities of the input files. `chat_template` is the job's replacement
    for the model's own, if any."""
    own = model_folder / TEMPLATE_FILE
    template = chat_template.encode() if chat_template is not None else own.read_bytes() if own.is_file() else b""
    return semantic_fingerprint(
        job,
        sources=sources,
        weights_sha256=weights_sha256(model_folder),
        tokenizer_sha256=tokenizer_sha256(model_folder),
        template_sha256=hashlib.sha256(template).hexdigest(),
    )


def read_chat_template(job: Job, base_dir: Path) -> str | None:
    """The text of `model.chat_template`, or None.

    Raises:
        ConfigError: the file cannot be read.
    """
    if job.model.chat_template is None:
        return None
    path = base_dir / job.model.chat_template
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: cannot read {path}: {error}") from None


def tokenizer_sha256(folder: Path) -> str:
    """Over the names and contents of the checkpoint's tokenizer files."""
    state = hashlib.sha256()
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            state.update(f"{name} {path.stat().st_size}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()


def max_model_len(job: Job, model_folder: Path) -> int:
    """Prompt + output tokens of a request at most: the job's limit, else the model's own, as the engine has it.

    Raises:
        ConfigError: the engine does not run such a model, or the job asks for more than it has.
    """
    from workers.architecture import read_architecture  # brings torch, which comparing fingerprints needs not

    own = read_architecture(model_folder).max_position
    wanted = job.model.max_model_len
    if wanted is not None and wanted > own:
        raise ConfigError(f"model.max_model_len is {wanted}, but the model's context has {own} tokens; lower it")
    return wanted or own
