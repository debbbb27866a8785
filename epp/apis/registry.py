"""Which parser reads a request, which need no body to be picked, and the key of session affinity.

Owns the table of routes. Versioned paths (``/v1/…``) are matched at the end of a path, because gateways put
prefixes before them; a bare path (``/score``) must be the whole path, because many other APIs end alike.
What no route names passes through unread: it is balanced, never refused for what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.apis.anthropic import CountTokensParser, MessagesParser
from epp.apis.generate import SGLangGenerateParser, VllmGenerateParser
from epp.apis.openai import ChatParser, CompletionParser
from epp.apis.pooling import EmbeddingsParser, RerankParser, ScoreParser
from epp.apis.responses import ResponsesParser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.apis.types import MeasuredPrompt, ParsedRequest, Parser


@dataclass(frozen=True, slots=True)
class Route:
    """One API's paths.

    Attributes:
        parser: reads its bodies.
        paths: without query; see the module for how they are matched.
        methods: that carry such a body.
    """

    parser: Parser
    paths: tuple[str, ...]
    methods: frozenset[str] = frozenset({"POST"})


ROUTES: tuple[Route, ...] = (
    Route(ChatParser(), ("/v1/chat/completions",)),
    Route(CompletionParser(), ("/v1/completions",)),
    Route(ResponsesParser(), ("/v1/responses",)),
    Route(EmbeddingsParser("openai-embeddings", vllm=False), ("/v1/embeddings",)),
    Route(MessagesParser(), ("/v1/messages",)),
    Route(CountTokensParser(), ("/v1/messages/count_tokens",)),
    Route(RerankParser(), ("/rerank", "/v1/rerank", "/v2/rerank")),
    Route(ScoreParser(), ("/score", "/v1/score")),
    Route(EmbeddingsParser("vllm-classify", vllm=True), ("/classify", "/v1/classify")),
    Route(EmbeddingsParser("vllm-pooling", vllm=True, plugins=True), ("/pooling", "/v1/pooling")),
    Route(VllmGenerateParser(), ("/inference/v1/generate",)),
    Route(SGLangGenerateParser(), ("/generate",), frozenset({"POST", "PUT"})),
)
PARSERS: tuple[Parser, ...] = tuple(route.parser for route in ROUTES)
_BY_PATH = {path: route for route in ROUTES for path in route.paths}
_VERSIONED = tuple(sorted((path for path in _BY_PATH if path.count("/") > 1), key=len, reverse=True))
#: Blocks that name a conversation which gives no session: about a thousand tokens.
AFFINITY_BLOCKS = 16


def find_parser(method: str, path: str, headers: Mapping[str, str]) -> Parser | None:
    """The parser for a request, None for what passes through unread.

    A body is JSON when its content type says so or is not given; other types pass through (audio comes as
    ``multipart/form-data``), and so does a body that is encoded (``content-encoding``). A request for an
    upgrade (WebSockets, ``/v1/realtime``) must: what looks like its body ends only with the connection.
    """
    route = _route(path)
    if route is None or method not in route.methods or is_upgrade(method, headers):
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        return None
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        return None
    return route.parser


def error_words(path: str) -> Callable[[int, str, str | None], bytes] | None:
    """How errors look on a path, whether or not the request can be read; None where no API is known.

    A refusal - no endpoint, a body too large - speaks the words of the path's API.
    """
    route = _route(path)
    return route.parser.error_body if route is not None else None


def affinity_key(request: ParsedRequest, prompt: MeasuredPrompt) -> str:
    """What session affinity keys on: the session hint, else the prompt's first blocks."""
    if request.session:
        return request.session
    if not prompt.blocks:
        return ""
    return f"{prompt.blocks[min(AFFINITY_BLOCKS, len(prompt.blocks)) - 1]:016x}"


def _route(path: str) -> Route | None:
    plain = path.partition("?")[0].rstrip("/")
    route = _BY_PATH.get(plain)
    if route is None:
        route = next((_BY_PATH[end] for end in _VERSIONED if plain.endswith(end)), None)
    return route


def is_upgrade(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request leaves HTTP behind: ``Upgrade`` (RFC 9110, 7.8) or an extended CONNECT (RFC 8441).

    An offer of HTTP/2 (``h2c``) is none: whoever takes it does so between its own neighbours.
    """
    asked = headers.get("upgrade", "").strip().lower()
    return method == "CONNECT" or asked not in ("", "h2c")
