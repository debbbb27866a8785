"""A faster encoder of the same tokenizer file, where one is installed and says the same.

Kitoken reads ``tokenizer.json`` of byte-level and SentencePiece models alike and encodes at tiktoken's speed,
four to five times that of tokenizers on new text; it keeps no cache that grows. Only models that merge (BPE)
are given to it: in lattices (Unigram) it was seen to choose otherwise among paths of equal worth.

Others were measured: tiktoken has no normalizer and one expression for splitting, so it fits some models
after a conversion; tokie is faster and says something else for some texts; gigatoken is much faster and
exact, and its cache has no bound in the release of July 2026. `docs/tokenizers.md` has the figures.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epp.tokenizer.proof import first_difference

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenizers import Tokenizer

log = logging.getLogger(__name__)


def fast_encoder(tokenizer: Tokenizer, file: Path) -> Callable[[str], list[int]] | None:
    """Text to ids, faster; None when nothing faster is installed, can read the file, or says the same."""
    if type(tokenizer.model).__name__ != "BPE":
        return None
    try:
        from kitoken import Kitoken  # noqa: PLC0415  # optional: tokenizers alone are enough
    except ImportError:
        return None
    try:
        definition = Kitoken.from_tokenizers_file(str(file))
    except Exception as error:  # noqa: BLE001  # the library raises plain exceptions
        log.info("%s: kitoken cannot read it (%s); tokenizers does", file, error)
        return None

    def encode(text: str) -> list[int]:
        ids: list[int] = definition.encode(text, True)
        return ids

    different = first_difference(tokenizer, encode)
    if different is not None:
        log.warning("%s: kitoken encodes %r in another way; tokenizers is used", file, different)
        return None
    return encode
