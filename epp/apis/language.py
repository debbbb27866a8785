"""The language of a prompt by the scripts of a short sample, whatever the prompt's length.

Owns the table of scripts and the sample. Must not know what the language is for. A script names the language
that it is most used for (Latin: English): enough to tell prompts apart that models answer differently well
(source [R], section 5.4), and no claim on what a linguist would say.

Rules: kana makes a text Japanese, whatever ideographs are beside it; ideographs alone are Chinese. A script
other than Latin needs a small share of the sample's letters, because names and quotes are no language, and
because markup and the words of programs are written in Latin letters in every language. Runs that are no
words count for nothing: with a digit, an underscore, a sign of base64, an inner hyphen, or a capital after a
small letter; eight capitals or more.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Final

#: Bytes looked at from the end of the prompt, where the question is, and from its beginning.
TAIL_BYTES: Final = 768
HEAD_BYTES: Final = 256
#: Share of a sample's letters, and the fewest of them, that make a script the prompt's own.
_SHARE: Final = 0.04
_FEWEST: Final = 3
#: A whole run that is a number, a hash, a key, encoded bytes or an identifier.
_NO_WORD: Final = re.compile(
    r"(?<![\w+/=-])(?:(?:[A-Z/-]++|[a-z]++(?![A-Z]))*+[0-9_+=a-z][0-9A-Za-z_+/=-]*+|[A-Z]{8,}+|\w++(?:-\w++)++)",
    re.ASCII,
)
#: The first word of a letter's Unicode name to the language of its script; the one with most letters wins.
SCRIPTS: Final = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "HANGUL": "ko",
    "CYRILLIC": "ru",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am",
    "LATIN": "en",
}
#: What a text in no other script is taken for.
LATIN: Final = SCRIPTS["LATIN"]


@lru_cache(maxsize=4096)
def _language_of_letter(letter: str) -> str:
    return SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0], "")


def language_of(canonical: bytes) -> str:
    """Return a language of `SCRIPTS`, or ``""`` where there is nothing to tell by.

    Args:
        canonical: the prompt's canonical bytes (UTF-8 with marks that are none). Token ids have no script.
    """
    if canonical.startswith(b"\xffI") or not canonical:
        return ""
    sample = canonical
    if len(canonical) > HEAD_BYTES + TAIL_BYTES:
        sample = canonical[:HEAD_BYTES] + b" " + canonical[-TAIL_BYTES:]
    # Marks, and characters cut at the sample's ends, are no text.
    text = sample.decode("utf-8", "ignore")
    if text.isascii():
        return LATIN
    letters = Counter[str]()
    for letter, count in Counter(_NO_WORD.sub("", text)).items():
        if language := _language_of_letter(letter):
            letters[language] += count
    total = letters.total()
    if letters["ja"] >= _FEWEST:
        letters["ja"] += letters.pop("zh", 0)
    del letters[LATIN]
    language, most = max(letters.items(), key=lambda one: one[1], default=(LATIN, 0))
    return language if most >= max(_FEWEST, _SHARE * total) else LATIN
