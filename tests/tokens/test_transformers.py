"""A model that ships SentencePiece's file alone is counted as transformers counts it."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.openai import Chat
from epp.config.schema import ModelTokenizer
from epp.tokens.load import load_model
from tests.tokens.texts import chat, chat_body, documents

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = "{% for m in messages %}{{ bos_token }}[INST] {{ m.content }} [/INST]{{ eos_token }}{% endfor %}"


def needed(name: str) -> Any:
    """An optional package; without it the test is skipped, on CI it fails."""
    return __import__(name) if os.environ.get("CI") else pytest.importorskip(name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with ``tokenizer.model`` and no ``tokenizer.json``."""
    trained = io.BytesIO()
    needed("sentencepiece").SentencePieceTrainer.train(
        sentence_iterator=(line for text in documents() for line in text.splitlines() if line),
        model_writer=trained,
        vocab_size=800,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(trained.getvalue())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "LlamaTokenizer", "chat_template": TEMPLATE, **special}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_counts_are_those_of_transformers(model: Path) -> None:
    theirs = needed("transformers").AutoTokenizer.from_pretrained(str(model))
    ours = load_model("m", ModelTokenizer(source=str(model)), model, "epp.yaml")
    for turns in range(3):
        messages = chat(turns)
        counted = ours.count(Chat.parse(chat_body(messages), {}).canonical, 256)[0]
        ids = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)["input_ids"]
        assert counted == len(ids) > 1000
