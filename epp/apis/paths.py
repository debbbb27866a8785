"""Which paths clients may ask engines for: APIs, and what they need beside them.

Owns the list; Envoy's routes, the picker and docs/apis.md are made from it. Everything else is shut: engines
serve operators on the same port (metrics, sleep, weights, adapters), most of them without a key. A versioned
path may have a prefix, which gateways add; any other must be the whole path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from epp.apis.registry import PARSERS, is_versioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Open paths that no parser reads, by what they are for, a blank between; ``/*`` stands for all paths below.
#: Sources: the routes of vLLM, SGLang, TensorRT-LLM, TGI and llama.cpp.
UNREAD: Mapping[str, str] = {
    "list models (the picker answers)": "/v1/models /v1/models/*",
    "count tokens, render prompts": "/tokenize /detokenize /v1/tokenize /v1/detokenize /v1/encode"
    " /apply-template /v1/chat/completions/render /v1/completions/render /v1/chat/completions/input_tokens",
    "read, cancel, delete stored responses": "/v1/responses/*",
    "files and batches": "/v1/files /v1/files/* /v1/batches /v1/batches/* /v1/chat/completions/batch",
    "sound, images, films": "/v1/audio/* /v1/images/* /v1/videos /v1/videos/* /v1/realtime",
    "embeddings, as Cohere and SGLang have them": "/v2/embed /encode",
    "llama.cpp's own names": "/chat/completions /responses /embedding"
    " /embeddings /reranking /v1/reranking /audio/transcriptions",
    "TGI's own names": "/generate_stream /chat_tokenize",
    "probes of load balancers": "/health /v1/health /ping /version",
}

_PREFIX = "(?:/[A-Za-z0-9._~-]+)*"
#: Shut though its end is open. vLLM and SGLang answer with metrics on every path that begins so, whatever
#: follows; dots are resolved behind a gateway that does not resolve them.
LEAVES = r"(?:/.*)?/(?:metrics|prometheus).*/v[0-9].*|.*/(?:\.|%2[eE]){2}(?:/.*)?"
#: What a client is told of any other path.
SHUT_WORDS = "no API has this path; request.open_paths opens further ones"


class OpenPaths:
    """What is open.

    Args:
        further: paths that are open, too; one that ends in a slash opens all below it.

    Attributes:
        pattern: of open paths (`pattern_of`), but for those of `LEAVES`.
    """

    def __init__(self, further: Iterable[str] = ()) -> None:
        self._read = frozenset(path for parser in PARSERS for path in parser.paths)
        self.pattern = pattern_of([*sorted(self._read), *" ".join(UNREAD.values()).split()], further)
        self._matches = re.compile(self.pattern).fullmatch
        self._leaves = re.compile(LEAVES).fullmatch

    def __contains__(self, path: str) -> bool:
        """Tell whether a path, with or without query, is open."""
        plain = path.partition("?")[0]
        return plain in self._read or (bool(self._matches(plain)) and not self._leaves(plain))


def pattern_of(paths: Iterable[str], further: Iterable[str] = ()) -> str:
    """Write a pattern of paths, with or without query, for Python and RE2 alike.

    Args:
        paths: of APIs; ``/*`` at the end stands for all below.
        further: without a prefix; a slash at the end stands for all below.
    """
    versioned, whole = list[str](), list[str]()
    for path in paths:
        text = re.escape(path.removesuffix("*")) + ".*" * path.endswith("*")
        (versioned if is_versioned(path) else whole).append(text)
    whole += [re.escape(path) + ".*" * path.endswith("/") for path in further]
    if versioned:
        whole.append(f"{_PREFIX}(?:{'|'.join(versioned)})")
    return rf"(?:{'|'.join(whole)})/*(?:\?.*)?"
