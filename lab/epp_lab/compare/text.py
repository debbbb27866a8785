"""Text for trace requests: from block ids to chat messages, the same bytes for the same ids.

Two requests whose ids agree up to a token offset have equal text up to there, so that every prefix that the
trace says is shared is shared byte by byte by whoever tokenises or hashes it.
"""

from __future__ import annotations

from hashlib import shake_128
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp_lab.compare.trace import TraceRequest

# 256 common three-letter words: with the space before it, each is four bytes and one token in the usual
# byte-pair vocabularies, so that a prompt of n tokens has 4 n bytes.
_WORDS = (  # noqa: SIM905 - a list of 256 literals is not readable
    "the and for are but not you all any can had her was one our out day get has him his how man new now "
    "old see two way who boy did its let put say she too use dad mom act add age ago aid aim air art ask "
    "bad bag ban bar bat bay bed bet bid big bit bob bow box bus buy cab cap car cat cop cow cry cup cut "
    "dam den dew die dig dim dip dog dot dry due dug ear eat egg ego end era eve eye fan far fat fed fee "
    "few fig fit fix fly fog fox fry fun fur gap gas gel gem gin god got gum gun gut guy gym ham hat hay "
    "hen hid hip hit hog hop hot hub hug hut ice icy ill ink inn ion ire ivy jam jar jaw jet job jog joy "
    "jug key kid kit lab lad lag lap law lay led leg lid lie lip lit log lot low mad map mat may men met "
    "mid mix mob mud mug nap net nod nor nut oak odd off oil opt orb ore owe own pad pal pan paw pay pea "
    "pen pet pie pig pin pit pop pot pub ran rat raw ray red rib rid rim rip rob rod rot row rub rug run "
    "rye sad sat saw sea set sew shy sin sip sit six ski sky son soy spa spy sum sun tab tag tan tap tar "
    "tax tea ten tie tin tip"
).split()
_BYTES_PER_TOKEN = 4
_TABLE = np.frombuffer("".join(f" {word}" for word in _WORDS).encode(), dtype="S4")
# Without known turns a message has this many tokens on average (650 tokens a turn, source [T]).
_MESSAGE_TOKENS = 325
_CLOSING = "Go on."


def prompt_text(request: TraceRequest) -> str:
    """Return the whole prompt as one text of four bytes a token."""
    size, parts, left = request.block_tokens, [], request.prompt_tokens
    for block_id in request.block_ids:
        take = min(size, left)
        # The digest of a length is the head of the digest of a greater one: a partial block is a true prefix.
        parts.append(shake_128(b"block %d" % block_id).digest(take))
        left -= take
        if left <= 0:
            break
    if left > 0:
        last = request.block_ids[-1] if request.block_ids else -1
        tail = f"tail {last} {request.prompt_tokens} {request.session if last < 0 else ''}"
        parts.append(shake_128(tail.encode()).digest(left))
    words = _TABLE[np.frombuffer(b"".join(parts), dtype=np.uint8)]
    return words.tobytes().decode("ascii")


def chat_messages(request: TraceRequest, answers: Mapping[int, str] | None = None) -> list[dict[str, str]]:
    """Return the prompt as a chat: system, then user and assistant in turns, the user last.

    Args:
        request: what to realise. Where it does not say where turns start, message starts are drawn per
            block id, so that requests with a common prefix have common messages.
        answers: texts really received, by the token offset at which each was appended (the length of the
            prompt that it answers); they stand in for the invented assistant messages there.
    """
    text, starts = prompt_text(request), request.turn_starts or _drawn_starts(request)
    known = answers or {}
    messages = []

    def add(role: str, start: int, end: int) -> None:
        content = text[start * _BYTES_PER_TOKEN : end * _BYTES_PER_TOKEN].lstrip()
        messages.append(
            {"role": role, "content": known.get(start, content) if role == "assistant" else content}
        )

    edges = (*starts, request.prompt_tokens)
    if edges[0] > 0:
        add("system", 0, edges[0])
    for turn, (start, end) in enumerate(pairwise(edges)):
        add("assistant" if turn % 2 else "user", start, end)
    if messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": _CLOSING})
    return messages


def _drawn_starts(request: TraceRequest) -> tuple[int, ...]:
    """Draw message starts for a prompt without known turns.

    The first block is the system message and further starts are drawn per block id, so that they depend on
    nothing behind them; a prompt of less than one block is one message of the user's.
    """
    size = request.block_tokens
    if request.prompt_tokens < size:
        return (0,)
    probability = min(1.0, size / _MESSAGE_TOKENS)
    starts = [size] if request.prompt_tokens > size else []
    for position, block_id in enumerate(request.block_ids):
        offset = position * size
        if size < offset < request.prompt_tokens and keyed_uniform(0, str(block_id), "turn") < probability:
            starts.append(offset)
    return tuple(starts)
