"""Key-value lookups as questions, in the form of source [R], section 3.1.

Owns their wording: a JSON object of random UUIDs, and a question that names one of its keys, last.
"""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import NamedTuple

#: Wordings by language, as `epp.apis.language` names it.
WORDINGS = {
    "en": "JSON data: {data}\nWhat is the value associated with the specified key?\nKey: {key}",
    "ja": "JSONデータ: {data}\n指定されたキーに関連付けられた値は何ですか。\nキー: {key}",
    "zh": "JSON数据: {data}\n与指定的键相关联的值是什么\n键: {key}",
    "ko": "JSON 데이터: {data}\n지정된 키에 연결된 값은 무엇입니까?\n키: {key}",
    "ru": "Данные JSON: {data}\nКакое значение связано с указанным ключом?\nКлюч: {key}",
    "el": "Δεδομένα JSON: {data}\nΠοια τιμή αντιστοιχεί στο καθορισμένο κλειδί;\nΚλειδί: {key}",
    "ar": "بيانات JSON: {data}\nما هي القيمة المرتبطة بالمفتاح المحدد؟\nالمفتاح: {key}",
    "he": "נתוני JSON: {data}\nמהו הערך המשויך למפתח שצוין?\nמפתח: {key}",
    "hi": "JSON डेटा: {data}\nनिर्दिष्ट कुंजी से जुड़ा मान क्या है?\nकुंजी: {key}",
    "th": "ข้อมูล JSON: {data}\nค่าที่เชื่อมโยงกับคีย์ที่ระบุคืออะไร\nคีย์: {key}",
}
#: Bytes of one pair in the object.
_PAIR_BYTES = 80
#: What is not drawn beside: the pair that is asked for, and pairs as long as the wording.
_OTHER_PAIRS = 4


class Question(NamedTuple):
    """A prompt, and the right answer."""

    prompt: str
    value: str


def question(name: object, language: str, tokens: int, token_bytes: float = 4.0) -> Question:
    """Make the question of that name; equal arguments give equal questions.

    Args:
        name: of the question, among those of a language and length.
        language: key of `WORDINGS`.
        tokens: most that the prompt has.
        token_bytes: bytes of such a prompt in a token. Questions that differ in it alone ask for the same key
            of an object that is longer or shorter, at the same depth.
    """
    random = Random(f"{language} {tokens} {name}")  # noqa: S311  # no secrets

    def new_id() -> str:
        return str(uuid.UUID(int=random.getrandbits(128), version=4))

    depth, key, value = random.random(), new_id(), new_id()
    pairs = [(new_id(), new_id()) for _ in range(_OTHER_PAIRS, int(tokens * token_bytes / _PAIR_BYTES))]
    pairs.insert(round(depth * len(pairs)), (key, value))
    return Question(WORDINGS[language].format(data=json.dumps(dict(pairs)), key=key), value)
