"""The language of a prompt: by its script, by a sample, never by all of it."""

# ruff: noqa: RUF001  # letters that look like Latin ones are what this is about

from __future__ import annotations

import base64
import json
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from epp.apis.canonical import Frames
from epp.apis.language import LATIN, language_of
from epp.apis.registry import MAX_TRIED, TRIED_HEADER, tried_models

if TYPE_CHECKING:
    from collections.abc import Callable

SENTENCES = {
    "en": "What is the value associated with the specified key?",
    "ja": "指定されたキーに関連付けられた値は何ですか。",
    "zh": "与指定的键相关联的值是什么？",
    "ko": "지정된 키와 연결된 값은 무엇입니까?",
    "ru": "Какое значение связано с указанным ключом?",
    "ar": "ما هي القيمة المرتبطة بالمفتاح المحدد؟",
    "he": "מהו הערך המשויך למפתח שצוין?",
    "el": "Ποια είναι η τιμή που σχετίζεται με το κλειδί;",
    "hi": "निर्दिष्ट कुंजी से संबद्ध मान क्या है?",
    "th": "ค่าที่เชื่อมโยงกับคีย์ที่ระบุคืออะไร",
}


#: Key-value lookups: as source [R] words them, as "Lost in the Middle" does, and shorter.
LOOKUPS = {
    "en": (
        "JSON data: {data}\nKey: {key}. The value associated with the specified key is:",
        'Extract the value corresponding to the specified key.\n{data}\nKey: "{key}"\nCorresponding value:',
        "Data: {data}\nKey: {key}\nValue:",
    ),
    "ja": (
        "JSONデータ: {data}\nキー: {key}。指定されたキーに関連付けられた値は:",
        '以下のJSONから指定されたキーの値を抽出してください。\n{data}\nキー: "{key}"\n対応する値:',
        "データ: {data}\nキー: {key}\n値:",
    ),
    "zh": (
        "JSON数据: {data}\n键: {key}。与指定键关联的值是:",
        '请从下面的JSON中提取与指定键对应的值。\n{data}\n键: "{key}"\n对应的值:',
        "数据: {data}\n键: {key}\n值:",
    ),
    "ko": (
        "JSON 데이터: {data}\n키: {key}. 지정된 키와 연결된 값:",
        '아래 JSON에서 지정된 키에 해당하는 값을 추출하세요.\n{data}\n키: "{key}"\n해당 값:',
        "데이터: {data}\n키: {key}\n값:",
    ),
    "ru": (
        "Данные JSON: {data}\nКлюч: {key}. Значение, связанное с указанным ключом:",
        'Извлеките значение указанного ключа из объекта JSON.\n{data}\nКлюч: "{key}"\nЗначение:',
        "Данные: {data}\nКлюч: {key}\nЗначение:",
    ),
    "ar": (
        "بيانات JSON: {data}\nالمفتاح: {key}. القيمة المرتبطة بالمفتاح المحدد هي:",
        'استخرج القيمة المقابلة للمفتاح المحدد.\n{data}\nالمفتاح: "{key}"\nالقيمة المقابلة:',
        "بيانات: {data}\nالمفتاح: {key}\nالقيمة:",
    ),
    "he": (
        "נתוני JSON: {data}\nמפתח: {key}. הערך המשויך למפתח שצוין הוא:",
        'חלץ את הערך המתאים למפתח שצוין.\n{data}\nמפתח: "{key}"\nהערך המתאים:',
        "נתונים: {data}\nמפתח: {key}\nערך:",
    ),
    "el": (
        "Δεδομένα JSON: {data}\nΚλειδί: {key}. Η τιμή που σχετίζεται με το κλειδί είναι:",
        'Εξαγάγετε την τιμή του καθορισμένου κλειδιού.\n{data}\nΚλειδί: "{key}"\nΑντίστοιχη τιμή:',
        "Δεδομένα: {data}\nΚλειδί: {key}\nΤιμή:",
    ),
    "hi": (
        "JSON डेटा: {data}\nकुंजी: {key}। निर्दिष्ट कुंजी से संबद्ध मान है:",
        'निर्दिष्ट कुंजी के अनुरूप मान निकालें।\n{data}\nकुंजी: "{key}"\nसंबंधित मान:',
        "डेटा: {data}\nकुंजी: {key}\nमान:",
    ),
    "th": (
        "ข้อมูล JSON: {data}\nคีย์: {key} ค่าที่เชื่อมโยงกับคีย์ที่ระบุคือ:",
        'ดึงค่าที่ตรงกับคีย์ที่ระบุจาก JSON ด้านล่าง\n{data}\nคีย์: "{key}"\nค่าที่ตรงกัน:',
        "ข้อมูล: {data}\nคีย์: {key}\nค่า:",
    ),
}
#: What keys and values are made of.
NO_WORDS: dict[str, Callable[[Random], str]] = {
    "UUIDs": lambda random: str(UUID(int=random.getrandbits(128), version=4)),
    "hex": lambda random: random.randbytes(16).hex(),
    "base64": lambda random: base64.b64encode(random.randbytes(24)).decode(),
    "identifiers": lambda random: f"user_{random.choice(('name', 'id'))}.lastLogin{random.randrange(999)}",
    "capitals": lambda random: "".join(random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=16)),
    "kebab-case": lambda random: "-".join(random.choices(("user", "item", "beta", "cart"), k=3)),
}


def canonical(*said: str) -> bytes:
    frames = Frames()
    for text in said:
        frames.add_said("user", text)
    return frames.bytes()


@pytest.mark.parametrize(("language", "sentence"), SENTENCES.items())
def test_a_sentence_tells_its_language(language: str, sentence: str) -> None:
    assert language_of(canonical(sentence)) == language


@pytest.mark.parametrize("kind", NO_WORDS)
@pytest.mark.parametrize("language", LOOKUPS)
def test_keys_are_no_words_whatever_the_wording_of_a_lookup(language: str, kind: str) -> None:
    random = Random(f"{language} {kind}")
    for wording in LOOKUPS[language]:
        right = 0
        for _ in range(100):
            pairs = [(NO_WORDS[kind](random), NO_WORDS[kind](random)) for _ in range(random.randint(20, 40))]
            asked = wording.format(data=json.dumps(dict(pairs)), key=random.choice(pairs)[0])
            right += language_of(canonical(asked)) == language
        assert right >= 99, wording


def test_a_name_or_a_sign_is_no_language() -> None:
    assert language_of(canonical("Send the invoice of 田中 to Köln. " + SENTENCES["en"] * 3)) == LATIN
    assert language_of(canonical("naïve café, 5 €, “quoted”…")) == LATIN
    assert language_of(canonical("done ✅🎉")) == LATIN


def test_ideographs_among_kana_are_japanese_and_alone_chinese() -> None:
    assert language_of(canonical("東京都渋谷区にある会社の株価")) == "ja"
    assert language_of(canonical("北京市朝阳区公司股价")) == "zh"


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("", ()),
        ("granite-2b", ("granite-2b",)),
        (" b , a,, a ,", ("a", "b")),
        (",".join(f"m{i:03}" for i in range(200)), tuple(f"m{i:03}" for i in range(MAX_TRIED))),
    ],
)
def test_tried_models_are_a_short_list_of_names(header: str, names: tuple[str, ...]) -> None:
    assert tried_models({TRIED_HEADER: header}) == names
