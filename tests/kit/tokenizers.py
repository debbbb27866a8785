"""Small tokenizers of the kinds that models have, trained on this repository's own documents.

``python -m tests.kit.tokenizers`` writes ``tests/tokens/data``. The kinds: ``bytes`` splits like GPT-4, Llama 3
and Qwen and merges bytes, with NFC before it; ``gpt2`` splits like GPT-2; ``pieces`` is what Llama 2 and Mistral
have: no splitting, a space before every text, bytes where letters are unknown; ``first`` is its newer
spelling; ``unigram`` is a lattice, as T5 has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "tokens" / "data"
KINDS = ("bytes", "gpt2", "pieces", "first", "unigram")
VOCABULARY = 1200
CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: ChatML with tools, and the brackets of Llama 2: roles that are tokens, and roles that are text.
CHATML = """\
{%- if tools %}
<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ (message.content or '') | trim }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
BRACKETS = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}[INST] {{ message.content | trim }} [/INST]
{%- elif message.role == 'assistant' %} {{ message.content | trim }} {{ eos_token }}
{%- elif message.role == 'system' %}{{ message.content }}

{% else %}{{ raise_exception('only user, assistant and system may speak') }}
{%- endif %}
{%- endfor %}"""


def corpus() -> list[str]:
    """Committed text: documents, code, and a little of other scripts."""
    files = sorted(
        [*(ROOT / "docs").glob("*.md"), *(ROOT / "epp" / "policies").glob("*.py"), ROOT / "README.md"]
    )
    other = (
        "你好，世界。今天天气很好，我们去公园吧！ "  # noqa: RUF001  # that is how Chinese is written
        "Привет, мир. こんにちは、世界。 안녕하세요 세계 naïve café 😀 "
    ) * 40
    return [*(path.read_text() for path in files), other]


def train(kind: str) -> Tokenizer:
    """A tokenizer of one of the `KINDS`."""
    if kind in ("bytes", "gpt2"):
        made = Tokenizer(models.BPE())
        whole = kind == "gpt2"
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=whole)
        if whole:
            made.pre_tokenizer = level
        else:
            made.normalizer = normalizers.NFC()
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(SPLIT), "isolated"), level]
            )
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            show_progress=False,
            special_tokens=CHAT_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        made.train_from_iterator(corpus(), trainer)
        return made
    if kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        lattice = trainers.UnigramTrainer(
            vocab_size=VOCABULARY,
            show_progress=False,
            special_tokens=["<unk>", "<s>", "</s>"],
            unk_token="<unk>",
        )
        made.train_from_iterator(corpus(), lattice)
        return made
    return _pieces(kind)


def _pieces(kind: str) -> Tokenizer:
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    # Trained word by word, like SentencePiece's; used without splitting.
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>"]
    all_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, special_tokens=special + all_bytes, limit_alphabet=120
    )
    made.train_from_iterator(corpus(), trainer)
    spelled: dict[str, Any] = json.loads(made.to_str())
    spelled["added_tokens"] = [token for token in spelled["added_tokens"] if token["content"] in special]
    if kind == "pieces":
        spelled["pre_tokenizer"] = None
        spelled["normalizer"] = json.loads(
            normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]).__getstate__()
        )
    else:
        spelled["pre_tokenizer"]["prepend_scheme"] = "first"
        spelled["pre_tokenizer"]["split"] = False
    made = Tokenizer.from_str(json.dumps(spelled))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def folder(kind: str) -> Path:
    """Where a kind's files lie, as a model's folder."""
    return DATA / kind


def main() -> None:
    """Write all of them."""
    for kind in KINDS:
        made = train(kind)
        folder(kind).mkdir(parents=True, exist_ok=True)
        (folder(kind) / "tokenizer.json").write_text(
            json.dumps(json.loads(made.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"
        )
        chatml = "<|im_start|>" in made.get_vocab()
        config: dict[str, Any] = {"chat_template": CHATML if chatml else BRACKETS}
        if not chatml:
            config |= {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
        (folder(kind) / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        print(kind, made.get_vocab_size())


if __name__ == "__main__":
    main()
