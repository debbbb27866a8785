"""The language of a prompt by the scripts of a short sample, whatever the prompt's length.

Owns the table of scripts and the sample. Must not know what the language is for. A script names the language
that it is most used for (Latin: English): enough to tell prompts apart that models answer differently well
(source [R], section 5.4), and no claim on what a linguist would say.

Rules: kana makes a text Japanese, whatever ideographs are beside it; ideographs alone are Chinese. A script
other than Latin needs a small share of the sample's letters, because names and quotes are no language, and
because code, keys and markup are written in Latin letters in every language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes looked at from the end of the prompt, where the question is, and from its beginning.
TAIL_BYTES: Final = 768
HEAD_BYTES: Final = 256
#: Share of a sample's letters, and the fewest of them, that make a script the prompt's own.
_SHARE: Final = 0.04
_FEWEST: Final = 3

#: Language -> ranges of characters of its script, ends included. The one with the most letters wins; kana
#: goes before ideographs (see `language_of`).
SCRIPTS: Final = {
    "ja": ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "zh": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
    "ko": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)),
    "ru": ((0x0400, 0x052F),),
    "ar": ((0x0600, 0x06FF), (0x0750, 0x077F), (0x08A0, 0x08FF)),
    "he": ((0x0590, 0x05FF),),
    "el": ((0x0370, 0x03FF),),
    "hi": ((0x0900, 0x097F),),
    "bn": ((0x0980, 0x09FF),),
    "ta": ((0x0B80, 0x0BFF),),
    "te": ((0x0C00, 0x0C7F),),
    "th": ((0x0E00, 0x0E7F),),
    "ka": ((0x10A0, 0x10FF),),
    "hy": ((0x0530, 0x058F),),
    "am": ((0x1200, 0x137F),),
}
#: What a text in no other script is taken for.
LATIN: Final = "en"
_LATIN_RANGES: Final = ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF))


def _ranges() -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Where runs of characters begin, rising, and the script of each: its place in `SCRIPTS`, Latin, none."""
    latin, none = len(SCRIPTS), len(SCRIPTS) + 1
    found = [(low, high, place) for place, ranges in enumerate(SCRIPTS.values()) for low, high in ranges]
    found += [(low, high, latin) for low, high in _LATIN_RANGES]
    starts, scripts = [0], [none]
    for low, high, place in sorted(found):
        starts += [low, high + 1]
        scripts += [place, none]
    return np.array(starts, np.uint32), np.array(scripts, np.int64)


_STARTS, _SCRIPT_OF = _ranges()
_NAMES: Final = tuple(SCRIPTS)
_JAPANESE, _CHINESE = _NAMES.index("ja"), _NAMES.index("zh")


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
    characters = np.frombuffer(text.encode("utf-32-le", "ignore"), "<u4")
    runs = _STARTS.searchsorted(characters, "right") - 1
    counts = np.bincount(_SCRIPT_OF[runs], minlength=len(_NAMES) + 2)[:-1].tolist()
    letters = sum(counts)
    if counts[_JAPANESE] >= _FEWEST:
        counts[_JAPANESE] += counts[_CHINESE]
        counts[_CHINESE] = 0
    most = max(counts[:-1])
    return _NAMES[counts.index(most)] if most >= _FEWEST and most >= _SHARE * letters else LATIN
