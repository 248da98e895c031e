"""A checkpoint folder for planning: a byte-level tokenizer with merges that puts a token before every text, a ChatML
template, no usable weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

CONTEXT = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message['content'] == 'forbidden' %}{{ raise_exception('not that word') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if shout is defined and shout %}!!!{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "Tell me something about rivers and the number seven.",
    "Answer in one short sentence, please; then stop. What is the capital of France?",
    "def plan(rows): return [row for row in rows if row]",
]


def save_small_chat_model(folder: Path, *, chat_template: str | None = CHATML) -> Path:
    """Write the folder and return it; the model's context has CONTEXT tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    config = {"model_type": "llama", "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=[], initial_alphabet=ByteLevel.alphabet(), show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    begin = SPECIAL[0]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return tokenizer
