"""Headers and metadata as plain Python values.

Reads messages, builds none. Header values that are not UTF-8 are read with replacement characters: such a
value can name no endpoint, model or session, and nothing read here is ever written back.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.struct_pb2 import Struct, Value

    from epp.pb.core_pb2 import HeaderMap, Metadata

LB_NAMESPACE = "envoy.lb"
#: Of the subset hint, the one namespace of a request's metadata that anybody reads.
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SERVED_KEY = "x-gateway-destination-endpoint-served"


def header_values(headers: HeaderMap) -> dict[str, str]:
    """Name -> value, names lower-cased, the last value of each.

    Envoy fills `raw_value`; proxies of other makes may still fill `value`.
    """
    return {
        header.key.lower(): raw.decode("utf-8", "replace") if (raw := header.raw_value) else header.value
        for header in headers.headers
    }


def metadata_values(metadata: Metadata, namespace: str) -> dict[str, dict[str, object]]:
    """One namespace of `filter_metadata` as plain values, namespace -> fields; empty without it."""
    told = metadata.filter_metadata
    return {namespace: plain_struct(told[namespace])} if namespace in told else {}


def plain_bytes(value: object) -> int:
    """The memory of plain values: of a dict or a list with all that is in it."""
    size = getsizeof(value)
    if isinstance(value, dict):
        size += sum(map(getsizeof, value)) + sum(map(plain_bytes, value.values()))
    elif isinstance(value, list):
        size += sum(map(plain_bytes, value))
    return size


def plain_struct(struct: Struct) -> dict[str, object]:
    """A Struct as a dict; null becomes None, numbers are floats."""
    return {name: plain_value(value) for name, value in struct.fields.items()}


def plain_value(value: Value) -> object:
    """A Struct's value as None, bool, float, str, list or dict."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain_struct(value.struct_value)
    if kind == "list_value":
        return [plain_value(element) for element in value.list_value.values]
    if kind is None or kind == "null_value":
        return None
    plain: object = getattr(value, kind)
    return plain


def served_endpoint(metadata: Mapping[str, Mapping[str, object]]) -> str:
    """The endpoint that really served, empty when the proxy does not tell.

    Source: endpoint picker protocol (proposal 004), response direction.
    """
    served = metadata.get(LB_NAMESPACE, {}).get(SERVED_KEY, "")
    return served if isinstance(served, str) else ""


def served_verdict(metadata: Mapping[str, Mapping[str, object]]) -> str:
    """What the conformance suite is told of who served, in the suite's own words where nobody is told.

    Source: endpoint picker protocol (proposal 004), conformance.
    """
    if LB_NAMESPACE not in metadata:
        return "fail: missing envoy lb metadata"
    return served_endpoint(metadata) or "fail: missing destination endpoint served metadata"
