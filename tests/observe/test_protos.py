"""Our access log messages are Envoy's: every field has the number, kind and shape of the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor

from epp.pb import access_log_pb2 as ours
from tests.observe.entries import accesslog, als, core, entry

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

SCALARS = {
    FieldDescriptor.TYPE_STRING: "TYPE_STRING",
    FieldDescriptor.TYPE_BOOL: "TYPE_BOOL",
    FieldDescriptor.TYPE_UINT32: "TYPE_UINT32",
    FieldDescriptor.TYPE_UINT64: "TYPE_UINT64",
    FieldDescriptor.TYPE_MESSAGE: "TYPE_MESSAGE",
}

PAIRS = [
    (ours.StreamAccessLogsMessage, als.StreamAccessLogsMessage),
    (ours.StreamAccessLogsMessage.Identifier, als.StreamAccessLogsMessageIdentifier),
    (ours.StreamAccessLogsMessage.HTTPAccessLogEntries, als.StreamAccessLogsMessageHttpAccessLogEntries),
    (ours.StreamAccessLogsResponse, als.StreamAccessLogsResponse),
    (ours.HTTPAccessLogEntry, accesslog.HttpAccessLogEntry),
    (ours.AccessLogCommon, accesslog.AccessLogCommon),
    (ours.ResponseFlags, accesslog.ResponseFlags),
    (ours.HTTPRequestProperties, accesslog.HttpRequestProperties),
    (ours.HTTPResponseProperties, accesslog.HttpResponseProperties),
    (ours.Address, core.Address),
    (ours.SocketAddress, core.SocketAddress),
]


@pytest.mark.parametrize(("mine", "theirs"), PAIRS, ids=lambda value: value.__name__)
def test_fields_are_the_originals(mine: Any, theirs: Any) -> None:
    descriptor: Descriptor = mine.DESCRIPTOR
    originals = {
        field.metadata["betterproto"].number: (name.rstrip("_"), field)
        for name, field in theirs.__dataclass_fields__.items()
    }
    for field in descriptor.fields:
        name, original = originals[field.number]
        meta = original.metadata["betterproto"]
        assert field.name == name
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        assert is_map == (meta.map_meta is not None)
        assert (field.is_repeated and not is_map) == meta.repeated
        if not is_map:
            assert SCALARS[field.type] == f"TYPE_{meta.proto_type.upper()}"
        assert (field.containing_oneof.name if field.containing_oneof else None) == meta.group


def test_all_of_ours_are_compared() -> None:
    def nested(descriptor: Descriptor) -> list[str]:
        inner = [n for d in descriptor.nested_types if not d.GetOptions().map_entry for n in nested(d)]
        return [descriptor.full_name, *inner]

    every = {n for d in ours.DESCRIPTOR.message_types_by_name.values() for n in nested(d)}
    assert every == {mine.DESCRIPTOR.full_name for mine, _ in cast("list[tuple[Any, Any]]", PAIRS)}


def test_an_entry_by_the_other_library_reads_the_same() -> None:
    message = als.StreamAccessLogsMessage(
        identifier=als.StreamAccessLogsMessageIdentifier(log_name="epp"),
        http_logs=als.StreamAccessLogsMessageHttpAccessLogEntries(log_entry=[entry()]),
    )
    read = ours.StreamAccessLogsMessage.FromString(bytes(message))
    assert read.identifier.log_name == "epp"
    (log_entry,) = read.http_logs.log_entry
    common = log_entry.common_properties
    assert common.upstream_remote_address.socket_address.port_value == 8001
    assert common.response_flags.ListFields() == []
    assert log_entry.response.response_code.value == 200
    assert common.metadata.filter_metadata["epp"].fields["decision_id"].string_value == "d-1"
    assert log_entry.request.request_body_bytes == 2
