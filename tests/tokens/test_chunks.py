"""Counts by chunks are counts at once: for every kind of tokenizer, on chats, documents and adversarial text."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, Tokenizer

from epp.apis.openai import ChatParser
from epp.apis.types import NotCountableError
from epp.config.schema import ModelTokenizer
from epp.tokens import model as module
from epp.tokens.chunks import ChunkCounts, safe_markers, split_points
from epp.tokens.load import load_model
from epp.tokens.model import TokenizerModel
from tests.kit.tokenizers import DATA, KINDS, folder
from tests.tokens.texts import ATOMS, chat, chat_body, documents

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
        canonical = ChatParser().parse(chat_body(chat(turns)), {}).canonical
        (text,) = made.rendered(canonical)
        assert made.count(canonical, 256).tokens == at_once(kind, text.decode())


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_what_the_tokenizer_puts_around_them(kind: str) -> None:
    made = load_model(kind, ModelTokenizer(source=kind), DATA, "epp.yaml")
    for text in documents():
        wanted = at_once(kind, text, add_special_tokens=True)
        assert made.count(b"\xffP" + text.encode(), 256).tokens == wanted


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from([*ATOMS, *MARKERS]) | st.text(max_size=6), max_size=40))
def test_any_text_counts_by_chunks_as_in_one_go(kind: str, parts: list[str]) -> None:
    text = "".join(parts).encode("utf-8", "replace")
    ends = split_points(text, safe_markers(reference(kind), MARKERS), least_bytes=1)
    chunks = [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(at_once(kind, chunk) for chunk in chunks) == at_once(kind, text.decode())


def test_a_longer_conversation_costs_its_new_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, encoded = load_model("m", ModelTokenizer(source="bytes"), DATA, "epp.yaml"), list[str]()
    lengths = made._batch_lengths
    monkeypatch.setattr(made, "_batch_lengths", lambda texts: encoded.extend(texts) or lengths(texts))  # type: ignore[func-returns-value]
    for turns in range(1, 8):
        encoded.clear()
        made.count(ChatParser().parse(chat_body(chat(turns)), {}).canonical, 256)
        new = 5000 if turns == 1 else 2500
        assert 0 < sum(map(len, encoded)) < new + 512


def test_chunks_end_at_markers_and_are_not_short() -> None:
    text = b"<s>" + b"a" * 10 + b"<s>" + b"b" * 30 + b"<e>" + b"c" * 3
    assert split_points(text, [b"<s>", b"<e>"], least_bytes=20) == [46, len(text)]
    assert split_points(text, [b"<s>", b"<e>"], least_bytes=5) == [13, 46, len(text)]
    assert split_points(text, [], least_bytes=5) == [len(text)]
    assert split_points(b"", [b"<s>"]) == []


def test_the_least_recently_used_counts_go_first() -> None:
    counts = ChunkCounts(max_counts=3)
    counts.add([(1, 10), (2, 20), (3, 30)])
    assert counts.find([1]) == [10]
    counts.add([(4, 40)])
    assert counts.find([1, 2, 3, 4]) == [10, None, 30, 40]


def test_markers_that_another_token_reaches_into_are_none() -> None:
    made = Tokenizer.from_file(str(folder("bytes") / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<|im_end|><|im_s", special=True, normalized=False)])
    made.add_special_tokens([AddedToken("<eats>", special=True, lstrip=True, normalized=False)])
    wanted = ["<|im_start|>", "<|im_end|>", "<eats>", "<absent>"]
    assert safe_markers(made, wanted) == [b"<|im_end|>"]


def test_new_text_is_encoded_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_BYTES", 2000)
    monkeypatch.setattr(module, "_LONGEST_CHUNK", 4000)
    made, sizes = TokenizerModel(reference("bytes"), markers=MARKERS), list[int]()
    lengths = made._batch_lengths
    monkeypatch.setattr(
        made,
        "_batch_lengths",
        lambda texts: sizes.append(sum(map(len, texts))) or lengths(texts),  # type: ignore[func-returns-value]
    )
    text = "".join(f"<|im_start|>{number}" + " and so on" * 60 for number in range(50))
    assert made.count(b"\xffP" + text.encode(), 256).tokens == at_once("bytes", text)
    assert sum(sizes) > 25_000
    assert max(sizes) < 3000
    with pytest.raises(NotCountableError, match="content"):
        made.count(b"\xffP" + b"a" * 5000, 256)
