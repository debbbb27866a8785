"""The language of a prompt: by its script, by a sample, never by all of it."""

# ruff: noqa: RUF001  # letters that look like Latin ones are what this is about

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.canonical import Frames, frame_token_ids
from epp.apis.language import HEAD_BYTES, LATIN, SCRIPTS, TAIL_BYTES, language_of
from epp.apis.tried import MAX_TRIED, TASK_HEADER, TRIED_HEADER, task_of, tried_models

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


def canonical(*said: str) -> bytes:
    frames = Frames()
    for text in said:
        frames.add_said("user", text)
    return frames.bytes()


@pytest.mark.parametrize(("language", "sentence"), SENTENCES.items())
def test_a_sentence_tells_its_language(language: str, sentence: str) -> None:
    assert language_of(canonical(sentence)) == language


@pytest.mark.parametrize("language", ["en", "ja", "zh"])
def test_a_question_behind_a_long_dictionary_of_keys_tells_it(language: str) -> None:
    keys = [str(uuid.UUID(int=i * 2**90 + i, version=4)) for i in range(400)]
    data = json.dumps(dict(zip(keys[::2], keys[1::2], strict=True)))
    assert language_of(canonical(data + f"\n{keys[4]} " + SENTENCES[language])) == language


def test_a_name_or_a_sign_is_no_language() -> None:
    assert language_of(canonical("Send the invoice of 田中 to Köln. " + SENTENCES["en"] * 3)) == LATIN
    assert language_of(canonical("naïve café, 5 €, “quoted”…")) == LATIN
    assert language_of(canonical("done ✅🎉")) == LATIN


def test_ideographs_among_kana_are_japanese_and_alone_chinese() -> None:
    assert language_of(canonical("東京都渋谷区にある会社の株価")) == "ja"
    assert language_of(canonical("北京市朝阳区公司股价")) == "zh"


def test_nothing_to_tell_by() -> None:
    assert language_of(b"") == ""
    assert language_of(frame_token_ids([[1, 2, 3]])) == ""


@given(st.binary(max_size=4000))
def test_any_bytes_have_one(data: bytes) -> None:
    assert language_of(data) in {"", LATIN, *SCRIPTS}


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_between_the_samples_is_not_looked_at(one: bytes, other: bytes) -> None:
    head, tail = canonical("a" * HEAD_BYTES), SENTENCES["ja"].encode() * 20
    assert language_of(head + one + tail[-TAIL_BYTES:]) == language_of(head + other + tail[-TAIL_BYTES:])


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("", ()),
        ("granite-2b", ("granite-2b",)),
        (" b , a,, a ,", ("a", "b")),
        (",".join(f"m{i}" for i in range(200)), tuple(sorted(f"m{i}" for i in range(MAX_TRIED)))),
        ("x" * 5000, ()),
    ],
)
def test_tried_models_are_a_short_list_of_names(header: str, names: tuple[str, ...]) -> None:
    assert tried_models({TRIED_HEADER: header}) == names


@given(st.text(max_size=6000))
def test_no_header_is_too_absurd(text: str) -> None:
    names = tried_models({TRIED_HEADER: text})
    assert len(names) <= MAX_TRIED
    assert len(task_of({TASK_HEADER: text})) <= 64
    assert tried_models({}) == ()
