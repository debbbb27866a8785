"""Texts that are long, or have no seam: what encoders are given of them at once is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.tokenizer.model import NotCountableError
from epp.tokenizer.proof import encode_all
from tests.tokenizer.test_model import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

WORDS = " and so on"


def framed(text: str) -> bytes:
    return b"\xffP" + text.encode()


@pytest.mark.parametrize("run", ["a", " ", "\u00a0"])
def test_a_long_piece_is_no_task_for_the_faster_encoder(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """Kitoken ends the process on a run of a million blanks: one request would be enough."""
    made, lengths = load("bytes"), []
    fast = made._fast
    assert fast is not None

    def watched(text: str) -> list[int]:
        lengths.append(len(text))
        return fast(text)

    monkeypatch.setattr(made, "_fast", watched)
    text = WORDS * 60 + run * 400_000 + WORDS * 60
    assert made.count(framed(text), 256).tokens == len(made.reference_ids(text))
    assert 0 < max(lengths) < 50_000


@pytest.mark.parametrize("name", ["bytes", "gpt2", "unigram"])
def test_a_piece_of_more_than_a_megabyte_is_not_counted(name: str) -> None:
    """The encoder takes hundreds of bytes for each of its characters, and a body may have thirty million."""
    made = load(name)
    for run in ("a", " "):
        with pytest.raises(NotCountableError, match="content"):
            made.count(framed(WORDS + run * 1_200_000), 256)
    assert made.count(framed(WORDS), 256).tokens == len(made.reference_ids(WORDS)), "what it was before"


@pytest.mark.parametrize("name", ["gpt2", "unigram"])
def test_new_text_is_encoded_by_parts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made, sizes = load(name), []
    assert not made.fast

    def watched(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        sizes.append(sum(map(len, texts)))
        return encode_all(tokenizer, texts)

    monkeypatch.setattr("epp.tokenizer.model.encode_all", watched)
    text = "".join(f"{WORDS} {number}" for number in range(100_000))
    assert made.count(framed(text), 256).tokens == len(made.reference_ids(text))
    assert sum(sizes) > 1_000_000
    assert max(sizes) < 300_000
