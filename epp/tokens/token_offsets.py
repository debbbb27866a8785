"""Tokens up to each block of canonical bytes, from the tokens up to places in the rendered text.

Owns the alignment of two texts that hold the same messages in different frames. What a frame holds is found
again in the rendered text and ties the two together; in between, both are stretched evenly. Exact at the ends
of the pieces that were counted, even in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Shorter contents are found in wrong places more often than they help.
_LEAST_TIE_BYTES = 16
_HEAD_BYTES = 64
#: Bytes of rendered text that are searched in vain for the contents of one prompt: templates may write none
#: of them as they came, and a search for each to the end of the text takes the square of its length.
_MOST_SEARCHED = 256 * 1024 * 1024


def token_offsets(
    canonical: bytes, rendered: bytes, ends: Sequence[int], tokens: Sequence[int], block_bytes: int
) -> list[float]:
    """Tokens from the start to the end of each whole block of a prompt.

    Args:
        canonical: the prompt in frames.
        rendered: the same, as the tokenizer saw it.
        ends: ascending places in the rendered text.
        tokens: tokens up to each of them.
        block_bytes: bytes of canonical prompt per block.

    Returns:
        One ascending value a whole block.
    """
    places = np.arange(block_bytes, len(canonical) + 1, block_bytes, dtype=np.float64)
    if not len(places) or not ends:
        return []
    ours, theirs = _ties(canonical, rendered)
    return np.interp(np.interp(places, ours, theirs), (0, *ends), (0, *tokens)).tolist()


def _ties(canonical: bytes, rendered: bytes) -> tuple[list[int], list[int]]:
    """Places in the one and the same places in the other, ascending in both."""
    ours, theirs = [0], [0]
    start, reached, left = 0, 0, _MOST_SEARCHED
    for frame in canonical.split(b"\xff"):
        end = start + len(frame)
        body = frame[1:]
        content = body.strip()
        if len(content) >= _LEAST_TIE_BYTES and left > 0:
            # Looked for by its head: searching for long needles costs a preparation as long as they are.
            found = rendered.find(content[:_HEAD_BYTES], reached)
            if found >= 0 and rendered.startswith(content, found):
                at = end - len(body.lstrip())
                reached = found + len(content)
                ours += (at, at + len(content))
                theirs += (found, reached)
            else:
                left -= (len(rendered) if found < 0 else found) - reached
        start = end + 1
    ours.append(len(canonical))
    theirs.append(len(rendered))
    return ours, theirs
