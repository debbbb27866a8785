"""Key-value lookups as text: a JSON object of UUIDs and a question after a key of it, in three languages."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from epp.keyed_uniform import keyed_uniform

#: Bytes of one pair in the object, and of a token in the simulated engines.
_PAIR_BYTES, _BYTES_PER_TOKEN = 80, 4
_QUESTIONS = {
    "en": "JSON data: {data}\nWhat is the value associated with the specified key?\nKey: {key}",
    "ja": "JSONデータ: {data}\n指定されたキーに関連付けられた値は何ですか。\nキー: {key}",
    "zh": "JSON数据: {data}\n与指定的键相关联的值是什么\n键: {key}",
}


@dataclass(frozen=True, slots=True)
class LookupQuestion:
    """One question.

    Attributes:
        name: names it.
        language: of the question.
        tokens: length of the prompt, about.
        prompt: the whole of it.
        value: the right answer.
    """

    name: str
    language: str
    tokens: int
    prompt: str
    value: str


def question(number: int, language: str, tokens: int, seed: int = 0) -> LookupQuestion:
    """The question of that number; equal arguments give equal questions."""
    name = f"{language} {tokens} {number}"
    pairs = [
        (_uuid(seed, f"{name} key {at}"), _uuid(seed, f"{name} value {at}"))
        for at in range(tokens * _BYTES_PER_TOKEN // _PAIR_BYTES)
    ]
    key, value = pairs[int(keyed_uniform(seed, name, "asked") * len(pairs))]
    prompt = _QUESTIONS[language].format(data=json.dumps(dict(pairs)), key=key)
    return LookupQuestion(name, language, tokens, prompt, value)


def _uuid(seed: int, name: str) -> str:
    high, low = (int(keyed_uniform(seed, name, salt) * 2**53) for salt in ("high", "low"))
    return str(uuid.UUID(int=(high << 64) | low, version=4))
