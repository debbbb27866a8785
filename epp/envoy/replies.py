"""Envoy's own answers - too long, no upstream, not understood - in the words of the path's API.

The picker's answers are local replies of Envoy, too; these have their words, and metadata to tell them by.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from epp.apis.paths import pattern_of
from epp.apis.registry import PARSERS, openai_error
from epp.config.relays import UNSERVED_HEADER
from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE

if TYPE_CHECKING:
    from epp.apis.types import ErrorBody

    _Tree = dict[str, Any]

REPLIED_KEY = "replied"
"""Field of the decision's metadata: the rule by which the picker has answered itself."""

_UNREACHED_FLAGS = ("UF", "UH", "UO", "DF")
"""No connection, no healthy endpoint, no room, no address: Envoy's flags where no endpoint saw the request
(envoyproxy.io/docs, configuration/observability/access_log/usage)."""

_BODY = "%LOCAL_REPLY_BODY%"
_STATUSES = (("EQ", 413), ("LE", 499), ("EQ", 503), ("EQ", 504), ("GE", 500))
"""APIs speak of some statuses apart from others of their class."""


def long_patterns() -> api.bootstrap.LayeredRuntime:
    """Let Envoy take patterns of many paths: by default RE2's program may have 100 steps."""
    layer = {"name": "epp", "static_layer": {"re2.max_program_size.error_level": 100_000}}
    return api.bootstrap.LayeredRuntime.from_dict({"layers": [layer]})


def local_replies(*, unserved: bool = False, retry_after: bool = False) -> api.hcm.LocalReplyConfig:
    """Word them; the first mapper that matches is the last.

    Args:
        unserved: mark answers to requests that no endpoint has seen, for a tier before this one.
        retry_after: ask clients that get 503 to come again in a second.
    """
    families: dict[ErrorBody, list[str]] = {}
    for parser in PARSERS:
        families.setdefault(parser.error_body, []).extend(parser.paths)
    families[openai_error] = families.pop(openai_error)  # last: it is for all other paths as well
    replied = {"filter": DECISION_NAMESPACE, "path": [{"key": REPLIED_KEY}], "value": {"present_match": True}}
    as_it_is = {"filter": {"metadata_filter": {"matcher": replied, "match_if_key_not_found": False}}}
    # Of these Envoy tells in no other way why, and often before it has read a path.
    details = "malformed request: %RESPONSE_CODE_DETAILS%"
    mappers = [as_it_is, _mapper(openai_error, 400, status_is("EQ", 400), message=details)]
    for words, paths in families.items():
        of_path = [] if words is openai_error else [_path(paths)]
        if unserved:
            unreached = {"response_flag_filter": {"flags": list(_UNREACHED_FLAGS)}}
            mark = [api.set_header(UNSERVED_HEADER, "true").to_dict()]
            mappers.append(_mapper(words, 503, unreached, *of_path) | {"headers_to_add": mark})
        for op, status in _STATUSES:
            mapper = _mapper(words, status, status_is(op, status), *of_path)
            if status == 503 and retry_after:
                mapper["headers_to_add"] = [api.set_header("retry-after", "1").to_dict()]
            mappers.append(mapper)
    return api.hcm.LocalReplyConfig.from_dict({"mappers": mappers})


def _mapper(words: ErrorBody, status: int, *filters: _Tree, message: str = _BODY) -> _Tree:
    """Word answers that all filters match as one of a status."""
    tree = json.loads(words(status, message, None))
    if tree["error"].get("code") == status:
        tree["error"]["code"] = "%RESPONSE_CODE%"
    every = filters[0] if len(filters) == 1 else {"and_filter": {"filters": list(filters)}}
    return {"filter": every, "body_format_override": {"json_format": tree}}


def _path(paths: list[str]) -> _Tree:
    text = {"safe_regex": {"regex": pattern_of(paths)}}
    return {"header_filter": {"header": {"name": ":path", "string_match": text}}}


def status_is(op: str, status: int) -> _Tree:
    """Match answers whose status compares so with this one; an access log's filter."""
    value = {"default_value": status, "runtime_key": "epp.replies"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}
