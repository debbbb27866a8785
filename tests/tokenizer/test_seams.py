"""Ids by pieces are ids at once: for every kind of tokenizer, on chats, documents and adversarial text."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, Tokenizer

from epp.config.schema import ModelTokenizer
from epp.prompt.openai import ChatParser
from epp.prompt.seams import PAIRS, Seams
from epp.tokenizer.load import load_model
from epp.tokenizer.model import TokenizerModel
from epp.tokenizer.proof import safe_markers, safe_pairs, spanning_tokens
from tests.kit.tokenizers import DATA, KINDS, folder
from tests.tokenizer.texts import ATOMS, chat, chat_body, documents

if TYPE_CHECKING:
    from collections.abc import Callable

PARSER = ChatParser()


@cache
def model(kind: str, *, fast: bool) -> TokenizerModel:
    """A tokenizer whose pieces and chapters are so short that every seam is used and beginnings are known."""
    made = load_model(kind, ModelTokenizer(source=kind, fast=fast), DATA, "epp.yaml")
    made.seams = Seams(made.seams.markers, made.seams.pairs, least_bytes=1, drop_space=made.seams.drop_space)
    made.chapter_bytes = 48
    return made


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chats_give_the_same_ids_as_in_one_go(kind: str, fast: bool) -> None:
    made = model(kind, fast=fast)
    for turns in range(6):
        canonical = PARSER.parse(chat_body(chat(turns)), {}).canonical
        for text in made.rendered(canonical):
            assert made.ids(text.decode()) == made.reference_ids(text.decode())
        whole = sum(len(made.reference_ids(text.decode())) for text in made.rendered(canonical))
        assert made.count(canonical, 256).tokens == whole


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_what_the_tokenizer_puts_around_them(kind: str) -> None:
    made = model(kind, fast=True)
    for text in documents():
        assert made.ids(text, add_special_tokens=True) == made.reference_ids(text, add_special_tokens=True)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(ATOMS) | st.text(max_size=6), max_size=40))
def test_any_text_gives_the_same_ids_as_in_one_go(kind: str, fast: bool, parts: list[str]) -> None:
    text = "".join(parts).encode("utf-8", "replace").decode()
    made = model(kind, fast=fast)
    assert made.ids(text) == made.reference_ids(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(
    parts=st.lists(st.sampled_from(ATOMS) | st.text(max_size=6), min_size=20, max_size=60),
    other=st.text(max_size=30),
    data=st.data(),
)
def test_what_is_known_of_a_beginning_changes_no_count(
    kind: str, parts: list[str], other: str, data: st.DataObject
) -> None:
    """A text after beginnings of it, and after texts that begin like it and go on otherwise."""
    made = model(kind, fast=True)
    parts = [part.encode("utf-8", "replace").decode() for part in parts]
    for end in sorted(data.draw(st.lists(st.integers(1, len(parts)), max_size=4))):
        for text in ("".join(parts[:end]), "".join(parts[:end]) + other.encode("utf-8", "replace").decode()):
            counted = made.count(frame(text), 32)
            assert counted.tokens == len(made.reference_ids(text, add_special_tokens=True))
            assert counted.curve == fresh(kind).count(frame(text), 32).curve


def test_a_beginning_that_goes_on_with_a_token_with_blanks_is_cut_anew() -> None:
    made = Tokenizer.from_file(str(folder("bytes") / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<place holder no 1>", special=True, normalized=False)])
    counted = TokenizerModel(made)
    counted.chapter_bytes = 64
    words = "words and more words " * 60
    for text in (words, words + "<place holder no 1> and on", words + "<place holder", words):
        assert counted.count(frame(text), 256).tokens == len(counted.reference_ids(text))


def frame(text: str) -> bytes:
    return b"\xffP" + text.encode()


def fresh(kind: str) -> TokenizerModel:
    """The tokenizer with nothing known."""
    made = model(kind, fast=True)
    made.cache.clear()
    return made


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        ("bytes", {"word", "quote", "clause"}),
        ("gpt2", {"word", "quote", "clause"}),
        ("pieces", {"word"}),
        ("first", {"word"}),
        ("unigram", {"word"}),
    ],
)
def test_every_kind_has_seams_between_words(kind: str, pairs: set[str]) -> None:
    seams = load_model(kind, ModelTokenizer(source=kind), DATA, "epp.yaml").seams
    assert {pair.name for pair in seams.pairs} >= pairs
    assert seams.drop_space == (kind == "pieces")


def test_texts_with_a_common_prefix_have_their_pieces_in_common() -> None:
    seams = Seams(["<|im_start|>"], PAIRS)
    text = documents()[1].encode()
    ends = seams.ends(text)
    assert max(end - start for start, end in zip([0, *ends], ends, strict=False)) < 2 * 512
    for cut in range(600, len(text), 997):
        longer, shorter = seams.ends(text[:cut] + b" and then something else"), seams.ends(text[:cut])
        assert longer[: len(shorter) - 1] == shorter[:-1] == ends[: len(shorter) - 1]


def _vocabulary(kind: str, change: Callable[[dict[str, object]], None]) -> Tokenizer:
    spelled = json.loads((folder(kind) / "tokenizer.json").read_text())
    change(spelled)
    return Tokenizer.from_str(json.dumps(spelled))


def test_a_merge_over_words_rules_the_seam_out() -> None:
    def merge_over_words(spelled: dict) -> None:  # type: ignore[type-arg]
        spelled["pre_tokenizer"] = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        vocabulary = spelled["model"]["vocab"]
        vocabulary["eĠt"] = max(vocabulary.values()) + 1
        spelled["model"]["merges"].append(["e", "Ġt"])

    names = {pair.name for pair in safe_pairs(_vocabulary("gpt2", merge_over_words), drop_space=False)}
    assert "word" not in names


def test_a_normalizer_that_strips_rules_the_seam_out() -> None:
    def strip(spelled: dict) -> None:  # type: ignore[type-arg]
        spelled["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}

    names = {pair.name for pair in safe_pairs(_vocabulary("gpt2", strip), drop_space=False)}
    assert "word" not in names


def test_markers_that_another_token_reaches_into_are_no_seams() -> None:
    made = Tokenizer.from_file(str(folder("bytes") / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<|im_end|><|im_s", special=True, normalized=False)])
    made.add_special_tokens([AddedToken("<eats>", special=True, lstrip=True, normalized=False)])
    wanted = ["<|im_start|>", "<|im_end|>", "<eats>", "<absent>"]
    assert safe_markers(made, wanted) == ["<|im_end|>"]


def test_a_text_that_holds_a_token_with_blanks_is_cut_at_markers_alone() -> None:
    made = Tokenizer.from_file(str(folder("bytes") / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<place holder no 1>", special=True, normalized=False)])
    assert spanning_tokens(made) == ["<place holder no 1>"]
    counted = TokenizerModel(made)
    text = "words and more words " * 60 + "<place holder no 1> and on"
    assert counted.ids(text) == counted.reference_ids(text)
    assert len(counted.seams.ends(text.encode())) == 1
