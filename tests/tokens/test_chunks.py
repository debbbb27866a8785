"""Counts by chunks are counts at once: for every kind of tokenizer, on chats, documents and adversarial text."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, Tokenizer

from epp.apis.content import prompt_content
from epp.apis.openai import Chat
from epp.config.schema import ModelTokenizer
from epp.tokens.load import load_model
from epp.tokens.model import safe_markers, split_points
from tests.kit.tokenizers import DATA, KINDS, folder
from tests.tokens.texts import ATOMS, chat, chat_body

MARKERS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]


@cache
def reference(kind: str) -> Tokenizer:
    return Tokenizer.from_file(str(folder(kind) / "tokenizer.json"))


def at_once(kind: str, text: str, *, add_special_tokens: bool = False) -> int:
    return len(reference(kind).encode(text, add_special_tokens=add_special_tokens).ids)


@pytest.mark.parametrize("kind", KINDS)
def test_chats_count_as_in_one_go(kind: str) -> None:
    made = load_model(kind, ModelTokenizer(source=kind), DATA, "epp.yaml")
    for turns in range(6):
        canonical = Chat.parse(chat_body(chat(turns)), {}).canonical
        (text,) = made.rendered(prompt_content(canonical))
        assert made.count(canonical, 256)[0] == at_once(kind, text.decode())


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.sampled_from([*ATOMS, *MARKERS]) | st.text(max_size=6), max_size=40))
def test_any_text_counts_by_chunks_as_in_one_go(kind: str, parts: list[str]) -> None:
    text = "".join(parts).encode("utf-8", "replace")
    ends = split_points(text, safe_markers(reference(kind), MARKERS), least_bytes=1)
    chunks = [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(at_once(kind, chunk) for chunk in chunks) == at_once(kind, text.decode())


def test_a_longer_conversation_costs_its_new_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, encoded = load_model("m", ModelTokenizer(source="bytes"), DATA, "epp.yaml"), list[str]()
    encode = made._encoded_batch
    monkeypatch.setattr(made, "_encoded_batch", lambda texts: encoded.extend(texts) or encode(texts))  # type: ignore[func-returns-value]
    for turns in range(1, 8):
        encoded.clear()
        made.count(Chat.parse(chat_body(chat(turns)), {}).canonical, 256)
        new = 5000 if turns == 1 else 2500
        assert 0 < sum(map(len, encoded)) < new + 512


def test_markers_that_another_token_reaches_into_are_none() -> None:
    made = Tokenizer.from_file(str(folder("bytes") / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<|im_end|><|im_s", special=True, normalized=False)])
    made.add_special_tokens([AddedToken("<eats>", special=True, lstrip=True, normalized=False)])
    wanted = ["<|im_start|>", "<|im_end|>", "<eats>", "<absent>"]
    assert safe_markers(made, wanted) == [b"<|im_end|>"]
