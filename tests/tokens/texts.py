"""Chats and texts that tokenizers are tried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
ATOMS = (
    "a", "the", " word", "Hello", " ", "  ", "\n", "\n\n", "\r\n", "\t", ".", "...", "'s", "'LL", "1", "12", "1234567",
    "é", "e\u0301", "你", "好\uff0c", "中\u3002我", "日本語", "😀", "👨\u200d👩\u200d👧", "\u00a0", "\u3000", "-", "_", "/", "//", '"',
    '", "', '","', ": {", "})", "ß", "İ", "ﬁ", "한", "\u200b", "<|im_start|>", "<s>", "</s>", "<", "|", "\ufeff", "Ω", "①",
    "٣", "ा", "x\u0300\u0301", "def f(x):\n    return x", "\u0300", " a b c d", "[INST] ", "\x00",
)  # fmt: skip


def documents() -> list[str]:
    """Committed prose and code."""
    return [(ROOT / name).read_text() for name in ("README.md", "docs/transport.md", "epp/policies/base.py")]


def chat(turns: int, system: str = "") -> list[dict[str, Any]]:
    """A conversation about this repository: questions, code, tool calls, other scripts."""
    texts = documents()
    messages: list[dict[str, Any]] = [{"role": "system", "content": system or texts[0][:3000]}]
    for turn in range(turns):
        start = 700 * turn
        messages.append(
            {"role": "user", "content": f"Question {turn}: 你好\uff0c世界 {texts[1][start : start + 900]}"}
        )
        messages.append(
            {"role": "assistant", "content": f"Answer {turn}. 😀\n\n{texts[2][start : start + 800]}"}
        )
    messages.append({"role": "user", "content": "And then?"})
    return messages


def chat_body(messages: list[dict[str, Any]], model: str = "m", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": messages, **more}).encode()
