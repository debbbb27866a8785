"""Small tokenizers of the kinds that models have, trained on documents and kept in ``tests/tokens/data``.

``bytes`` splits like GPT-4, Llama 3 and Qwen and merges bytes, with NFC before it; ``gpt2`` splits like GPT-2;
``pieces`` is what Llama 2 and Mistral have: no splitting, a space before every text, bytes where letters are
unknown; ``first`` is its newer spelling; ``unigram`` is a lattice, as T5 has it.
"""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent.parent / "tokens" / "data"
KINDS = ("bytes", "gpt2", "pieces", "first", "unigram")


def folder(kind: str) -> Path:
    """Return where a kind's files lie, as a model's folder."""
    return DATA / kind
