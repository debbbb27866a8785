"""Which parser reads a request, and which requests are decided without a body.

Owns the table of routes and the shapes of errors, so that clients raise their own exceptions. Versioned paths
(``/v1/…``) are matched at the end of a path, because gateways put prefixes before them; a bare path
(``/score``) must be the whole path, because many other APIs end alike. What no route names passes through
unread where it is open (`epp.apis.paths`): it is balanced.

Owns, too, what a client says in headers: the models that it has tried for the same question, and the task. It
is a client's word, kept short here and matched against the pool's own names by whoever uses it: what no
endpoint is called changes nothing, and a client that lies worsens its own answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from epp.apis.anthropic import CountTokens, Messages
from epp.apis.generate import Generate, Llama, Tokens
from epp.apis.openai import Chat, Completion
from epp.apis.pooling import Classify, Embeddings, Pooling, Rerank, Score
from epp.apis.responses import Responses
from epp.apis.types import Parser

if TYPE_CHECKING:
    from epp.apis.body import Body
    from epp.apis.types import ErrorBody, Headers


_ENCODER = msgspec.json.Encoder(order="deterministic")
#: Error types of Anthropic's API by status (its errors page); other 4xx are invalid requests.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
#: Error types of vLLM's routes by status.
_VLLM_TYPES = {
    401: "UnauthorizedError",
    404: "NotFoundError",
    413: "RequestEntityTooLargeError",
    429: "TooManyRequestsError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


def openai_error(status: int, message: str, param: str | None = None) -> bytes:
    """Return OpenAI's error: ``{"error": {message, type, param, code}}``."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    if status == 429:  # some clients go by the type alone
        kind = "rate_limit_error"
    code = "model_not_found" if status == 404 and param == "model" else None
    return _ENCODER.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def vllm_error(status: int, message: str, param: str | None = None) -> bytes:
    """Return vLLM's error: OpenAI's shape, the type named after the status, the code its number."""
    kind = _VLLM_TYPES.get(status, "BadRequestError" if 400 <= status < 500 else "InternalServerError")
    return _ENCODER.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def sglang_error(status: int, message: str, param: str | None = None) -> bytes:  # noqa: ARG001 - one signature
    """Return SGLang's error for ``/generate``: ``{"error": {"message": …}}`` and nothing else."""
    return _ENCODER.encode({"error": {"message": message}})


def anthropic_error(status: int, message: str, param: str | None = None) -> bytes:  # noqa: ARG001 - one signature
    """Return Anthropic's error: ``{"type": "error", "error": {type, message}}``."""
    usual = "invalid_request_error" if 400 <= status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(status, usual)
    return _ENCODER.encode({"type": "error", "error": {"type": kind, "message": message}})


def _parser(
    body: type[Body], error_body: ErrorBody, *paths: str, methods: frozenset[str] = frozenset({"POST"})
) -> Parser:
    return Parser(body.api, body.parse, error_body, paths, methods)


PARSERS = (
    _parser(Chat, openai_error, "/v1/chat/completions"),
    _parser(Completion, openai_error, "/v1/completions"),
    _parser(Responses, openai_error, "/v1/responses"),
    _parser(Embeddings, openai_error, "/v1/embeddings"),
    _parser(Messages, anthropic_error, "/v1/messages"),
    _parser(CountTokens, anthropic_error, "/v1/messages/count_tokens"),
    _parser(Rerank, vllm_error, "/rerank", "/v1/rerank", "/v2/rerank"),
    _parser(Score, vllm_error, "/score", "/v1/score"),
    _parser(Classify, vllm_error, "/classify", "/v1/classify"),
    _parser(Pooling, vllm_error, "/pooling", "/v1/pooling"),
    _parser(Tokens, vllm_error, "/inference/v1/generate"),
    _parser(Llama, openai_error, "/completion", "/completions", "/infill"),
    _parser(Generate, sglang_error, "/generate", methods=frozenset({"POST", "PUT"})),
)


def is_versioned(path: str) -> bool:
    """Tell whether a path of an API may have a prefix."""
    return re.search(r"/v\d/", path) is not None


_BY_PATH = {path: parser for parser in PARSERS for path in parser.paths}
_VERSIONED = tuple(sorted(filter(is_versioned, _BY_PATH), key=len, reverse=True))


def find_parser(method: str, path: str, headers: Headers) -> Parser | None:
    """Return the parser for a request, None for what passes through unread.

    A body is JSON when its content type says so or is not given; other types pass through (audio comes as
    ``multipart/form-data``), and so does a body that is encoded (``content-encoding``). A request for an
    upgrade (WebSockets, ``/v1/realtime``) must: what looks like its body ends only with the connection.
    """
    parser = _parser_of(path)
    if parser is None or method not in parser.methods or is_upgrade(method, headers):
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        return None
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        return None
    return parser


def error_words(path: str) -> ErrorBody | None:
    """Return how errors look on a path, whether or not the request can be read; None where no API is known.

    A refusal - no endpoint, a body too large - speaks the words of the path's API.
    """
    parser = _parser_of(path)
    return None if parser is None else parser.error_body


def _parser_of(path: str) -> Parser | None:
    plain = path.partition("?")[0].rstrip("/")
    parser = _BY_PATH.get(plain)
    if parser is None:
        parser = next((_BY_PATH[end] for end in _VERSIONED if plain.endswith(end)), None)
    return parser


def is_upgrade(method: str, headers: Headers) -> bool:
    """Return whether a request leaves HTTP: ``Upgrade`` (RFC 9110, 7.8) or extended CONNECT (RFC 8441).

    An offer of HTTP/2 (``h2c``) is none: whoever takes it does so between its own neighbours.
    """
    asked = headers.get("upgrade", "").strip().lower()
    return method == "CONNECT" or asked not in ("", "h2c")


#: Request header: models that served earlier attempts, separated by commas.
TRIED_HEADER: Final = "x-epp-tried-models"
#: Request header: what kind of work a prompt is, by a name of the capability file.
TASK_HEADER: Final = "x-epp-task"
MAX_TRIED: Final = 32
_MAX_TASK_CHARS: Final = 64


def tried_models(headers: Headers) -> tuple[str, ...]:
    """Return the names in the header, each once, sorted, the first `MAX_TRIED` of them."""
    names = {name.strip() for name in headers.get(TRIED_HEADER, "").split(",")} - {""}
    return tuple(sorted(names)[:MAX_TRIED])


def task_of(headers: Headers) -> str:
    """Return the task that the header names, ``""`` for none."""
    task = headers.get(TASK_HEADER, "").strip()
    return task if len(task) <= _MAX_TASK_CHARS else ""
