"""Which parser reads a request, and the key of session affinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.prompt.openai import ChatParser, CompletionParser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.prompt.types import MeasuredPrompt, ParsedRequest, Parser

PARSERS: tuple[Parser, ...] = (ChatParser(), CompletionParser())
#: Longest suffix first: ``/v1/chat/completions`` before ``/v1/completions`` would matter to shorter suffixes.
_BY_SUFFIX = sorted(
    ((suffix, parser) for parser in PARSERS for suffix in parser.paths), key=lambda pair: -len(pair[0])
)
#: Blocks that name a conversation which gives no session: about a thousand tokens.
AFFINITY_BLOCKS = 16


def find_parser(method: str, path: str, headers: Mapping[str, str]) -> Parser | None:
    """The parser for a request, None for what passes through unread.

    A body is JSON when its content type says so or is not given; other types pass through.
    """
    if method != "POST":
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        return None
    plain = path.partition("?")[0].rstrip("/")
    return next((parser for suffix, parser in _BY_SUFFIX if plain.endswith(suffix)), None)


def affinity_key(request: ParsedRequest, prompt: MeasuredPrompt) -> str:
    """What session affinity keys on: the session hint, else the prompt's first blocks."""
    if request.session:
        return request.session
    if not prompt.blocks:
        return ""
    return f"{prompt.blocks[min(AFFINITY_BLOCKS, len(prompt.blocks)) - 1]:016x}"
