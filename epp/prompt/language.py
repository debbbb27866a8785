"""The language of a prompt by the scripts of a short sample, whatever the prompt's length.

Owns the table of scripts and the sample. Must not know what the language is for. A script names the language
that it is most used for (Latin: English): enough to tell prompts apart that models answer differently well
(source [R], section 5.4), and no claim on what a linguist would say.

Rules: kana makes a text Japanese, whatever ideographs are beside it; ideographs alone are Chinese. A script
other than Latin needs a small share of the sample's letters, because names and quotes are no language, and
because code, keys and markup are written in Latin letters in every language.
"""

from __future__ import annotations

import re
from typing import Final

#: Bytes looked at from the end of the prompt, where the question is, and from its beginning.
TAIL_BYTES: Final = 768
HEAD_BYTES: Final = 256
#: Share of a sample's letters, and the fewest of them, that make a script the prompt's own.
_SHARE: Final = 0.04
_FEWEST: Final = 3

#: Language -> characters of its script, as the inside of a regular expression's class. Of those that are in
#: a text the first with the most letters wins; kana goes before ideographs (see `language_of`).
SCRIPTS: Final = {
    "ja": "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "zh": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "ru": "\u0400-\u052f",
    "ar": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff",
    "he": "\u0590-\u05ff",
    "el": "\u0370-\u03ff",
    "hi": "\u0900-\u097f",
    "bn": "\u0980-\u09ff",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "th": "\u0e00-\u0e7f",
    "ka": "\u10a0-\u10ff",
    "hy": "\u0530-\u058f",
    "am": "\u1200-\u137f",
}
#: What a text in no other script is taken for.
LATIN: Final = "en"

_CLASSES: Final = {language: re.compile(f"[{inside}]") for language, inside in SCRIPTS.items()}
_LETTER: Final = re.compile(r"[^\W\d_]")


def language_of(canonical: bytes) -> str:
    """A language of `SCRIPTS`, `LATIN`, or ``""`` where there is nothing to tell by.

    Args:
        canonical: the prompt's canonical bytes (UTF-8 with marks that are none). Token ids have no script.
    """
    if canonical.startswith(b"\xffI") or not canonical:
        return ""
    if len(canonical) <= HEAD_BYTES + TAIL_BYTES:
        sample = canonical
    else:
        sample = canonical[:HEAD_BYTES] + b" " + canonical[-TAIL_BYTES:]
    # Marks, and characters cut at the sample's ends, are no text.
    text = sample.decode("utf-8", "ignore")
    if text.isascii():
        return LATIN
    letters = len(_LETTER.findall(text))
    counts = {language: len(pattern.findall(text)) for language, pattern in _CLASSES.items()}
    if counts["ja"] >= _FEWEST:
        counts["ja"] += counts.pop("zh")
    best = max(counts, key=counts.__getitem__)
    enough = counts[best] >= _FEWEST and counts[best] >= _SHARE * letters
    return best if enough else LATIN
