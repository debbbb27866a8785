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

REPLIED_KEY = "replied"
"""Field of the decision's metadata: the rule by which the picker has answered itself."""

_UNREACHED_FLAGS = ("UF", "UH", "UO", "DF")
"""No connection, no healthy endpoint, no room, no address: Envoy's flags where no endpoint saw the request
(envoyproxy.io/docs, configuration/observability/access_log/usage)."""

_BODY, _DETAILS = "%LOCAL_REPLY_BODY%", "malformed request: %RESPONSE_CODE_DETAILS%"
_NAMED = (413, 503, 504)
"""Statuses of which APIs speak apart from others of their class."""


def long_patterns() -> api.bootstrap.LayeredRuntime:
    """Let Envoy take patterns of many paths: by default RE2's program may have 100 steps."""
    size = api.protobuf.Struct(
        fields={"re2.max_program_size.error_level": api.protobuf.Value(number_value=1e5)}
    )
    return api.bootstrap.LayeredRuntime(layers=[api.bootstrap.RuntimeLayer(name="epp", static_layer=size)])


def local_replies(*, unserved: bool = False) -> api.hcm.LocalReplyConfig:
    """Word them; the first mapper that matches is the last.

    Args:
        unserved: mark answers to requests that no endpoint has seen, for a tier before this one.
    """
    ops = api.accesslog.ComparisonFilterOp
    families: dict[ErrorBody, list[str]] = {}
    for parser in PARSERS:
        families.setdefault(parser.error_body, []).extend(parser.paths)
    del families[openai_error]  # for its own paths, and for all that are no other API's
    # Envoy tells in no other way why, and often before it has read a path.
    mappers = [_of_picker(), _mapper(openai_error, 400, _status(ops.EQ, 400), message=_DETAILS)]
    for words, paths in [*families.items(), (openai_error, list[str]())]:
        of_path = [_path(paths)] if paths else []
        if unserved:
            unreached = api.accesslog.ResponseFlagFilter(flags=list(_UNREACHED_FLAGS))
            flags = api.accesslog.AccessLogFilter(response_flag_filter=unreached)
            mapper = _mapper(words, 503, *of_path, flags)
            mapper.headers_to_add = [api.set_header(UNSERVED_HEADER, "true")]
            mappers.append(mapper)
        mappers += [
            _mapper(words, status, *of_path, _status(ops.EQ, status))
            for status in _NAMED
            if _tree(words, status) != _tree(words, 400 if status < 500 else 500)
        ]
        if _tree(words, 400) != _tree(words, 500):
            mappers.append(_mapper(words, 400, *of_path, _status(ops.LE, 499)))
        mappers.append(_mapper(words, 500, *of_path, _status(ops.GE, 400)))
    return api.hcm.LocalReplyConfig(mappers=mappers)


def _of_picker() -> api.hcm.ResponseMapper:
    """Leave the picker's answers as they are."""
    path = [api.matcher.MetadataMatcherPathSegment(key=REPLIED_KEY)]
    present = api.matcher.ValueMatcher(present_match=True)
    matcher = api.matcher.MetadataMatcher(filter=DECISION_NAMESPACE, path=path, value=present)
    metadata = api.accesslog.MetadataFilter(matcher=matcher, match_if_key_not_found=False)
    return api.hcm.ResponseMapper(filter=api.accesslog.AccessLogFilter(metadata_filter=metadata))


def _mapper(
    words: ErrorBody, status: int, *filters: api.accesslog.AccessLogFilter, message: str = _BODY
) -> api.hcm.ResponseMapper:
    """Word answers that all filters match as one of a status."""
    every = filters[0]
    if len(filters) > 1:
        every = api.accesslog.AccessLogFilter(and_filter=api.accesslog.AndFilter(filters=list(filters)))
    body = api.protobuf.Struct.from_dict(_tree(words, status, message))
    text = api.core.SubstitutionFormatString(json_format=body)
    return api.hcm.ResponseMapper(filter=every, body_format_override=text)


def _tree(words: ErrorBody, status: int, message: str = _BODY) -> dict[str, Any]:
    """Build an error as an API words it, of any status that says the same."""
    tree: dict[str, Any] = json.loads(words(status, message, None))
    if tree["error"].get("code") == status:
        tree["error"]["code"] = "%RESPONSE_CODE%"
    return tree


def _path(paths: list[str]) -> api.accesslog.AccessLogFilter:
    text = api.matcher.StringMatcher(safe_regex=api.matcher.RegexMatcher(regex=pattern_of(paths)))
    header = api.route.HeaderMatcher(name=":path", string_match=text)
    return api.accesslog.AccessLogFilter(header_filter=api.accesslog.HeaderFilter(header=header))


def _status(op: api.accesslog.ComparisonFilterOp, status: int) -> api.accesslog.AccessLogFilter:
    value = api.core.RuntimeUInt32(default_value=status, runtime_key="epp.replies")
    compared = api.accesslog.ComparisonFilter(op=op, value=value)
    found = api.accesslog.StatusCodeFilter(comparison=compared)
    return api.accesslog.AccessLogFilter(status_code_filter=found)
