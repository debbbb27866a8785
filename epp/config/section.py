"""What every section of the configuration is made of: a strict base and numbers with their bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from epp.types import MAX_MODEL_CHARS

#: Largest number of seconds, tokens and the like; above all, `.inf` is more: no wait or sum can be had of it.
MOST = 1e12

Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST, extra={"fix": f"above 0 and at most {MOST:.0f}"})]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MOST, extra={"fix": f"from 0 to {MOST:.0f}"})]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
#: RFC 9110, section 5.1, or one of HTTP/2's own, such as ``:authority``; none where empty.
HeaderName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(:?[!#$%&'*+.^_`|~0-9A-Za-z-]+)?$",
        extra={"fix": "a header's name alone, e.g. x-tenant: letters, digits and dashes"},
    ),
]
#: A request's target (RFC 9112, 3.2.1). To any other engines say 400, which a probe would take for life.
RequestPath = Annotated[
    str, msgspec.Meta(pattern=r"^/[!-~]*$", extra={"fix": "a path without blanks, from / on, e.g. /health"})
]
#: A path of metrics; one that is found by asking where empty.
MetricsPath = Annotated[
    str,
    msgspec.Meta(pattern=r"^(/[!-~]*)?$", extra={"fix": "a path without blanks, from / on, e.g. /metrics"}),
]
#: A ZeroMQ address with a port, in which ``{host}`` is an endpoint's; none where it is empty.
KvUrl = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(tcp://[^:@/ ]+:[0-9]{1,5}|tcp://\[[0-9a-fA-F:.]+\]:[0-9]{1,5})?$",
        extra={"fix": "tcp://HOST:PORT, such as tcp://{host}:5557"},
    ),
]
#: What stands before an engine's paths; nothing where it is empty.
BasePath = Annotated[
    str,
    msgspec.Meta(pattern=r"^(/[!-~]*[^/?#])?$", extra={"fix": "a path that ends without a /, e.g. /llm"}),
]
#: Longest wait for engines that are asked for their models; what Envoy is rendered for.
MAX_MODEL_WAIT_S = 5.0
ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL_CHARS)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, keyword-only, strict."""
