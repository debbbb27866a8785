"""Our wire definitions are Envoy's, and what we send is what an independent reader reads."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from epp.extproc.modes import BodyMode
from epp.pb import access_log_pb2 as log
from epp.pb import core_pb2, ext_proc_pb2, http_status_pb2, processing_mode_pb2
from protos.generate import generate
from tests.observe.entries import accesslog, als, core

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing these generated classes warns about how they were generated
    from envoy_data_plane.envoy.config.core import v3 as their_core
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as their_modes
    from envoy_data_plane.envoy.service.ext_proc import v3 as their_ext_proc
    from envoy_data_plane.envoy.type import v3 as their_type

PAIRS: list[tuple[Any, Any]] = [
    (core_pb2, their_core),
    (ext_proc_pb2, their_ext_proc),
    (http_status_pb2, their_type),
    (processing_mode_pb2, their_modes),
]

#: Messages of the access log, of which we read a part.
LOG_PAIRS: list[tuple[Any, Any]] = [
    (log.StreamAccessLogsMessage, als.StreamAccessLogsMessage),
    (log.StreamAccessLogsMessage.Identifier, als.StreamAccessLogsMessageIdentifier),
    (log.StreamAccessLogsMessage.HTTPAccessLogEntries, als.StreamAccessLogsMessageHttpAccessLogEntries),
    (log.StreamAccessLogsResponse, als.StreamAccessLogsResponse),
    (log.HTTPAccessLogEntry, accesslog.HttpAccessLogEntry),
    (log.AccessLogCommon, accesslog.AccessLogCommon),
    (log.ResponseFlags, accesslog.ResponseFlags),
    (log.HTTPRequestProperties, accesslog.HttpRequestProperties),
    (log.HTTPResponseProperties, accesslog.HttpResponseProperties),
    (log.Address, core.Address),
    (log.SocketAddress, core.SocketAddress),
]

#: Left out on purpose: deprecated upstream.
LEFT_OUT = {("HttpHeaders", "attributes"), ("HeaderValueOption", "append")}

PROTO_TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def both() -> list[tuple[Descriptor, Any]]:
    return [
        (descriptor, getattr(theirs, name))
        for ours, theirs in PAIRS
        for name, descriptor in ours.DESCRIPTOR.message_types_by_name.items()
    ]


def enums() -> list[tuple[EnumDescriptor, Any]]:
    found: list[tuple[EnumDescriptor, Any]] = []
    for ours, theirs in PAIRS:
        file = ours.DESCRIPTOR
        found += [(enum, getattr(theirs, name)) for name, enum in file.enum_types_by_name.items()]
        for outer, message in file.message_types_by_name.items():
            found += [
                (enum, getattr(theirs, outer + name)) for name, enum in message.enum_types_by_name.items()
            ]
    return found


def type_name(field: FieldDescriptor) -> str:
    """The name of a field's message or enum type, as their annotations spell it."""
    named = field.enum_type or field.message_type
    assert named is not None
    outer = named.containing_type
    return ((outer.name if outer else "") + named.name).replace("HTTP", "Http")


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    message = field.message_type
    return message if message is not None and message.GetOptions().map_entry else None


def nested(descriptor: Descriptor) -> list[Descriptor]:
    inner = [n for d in descriptor.nested_types if not d.GetOptions().map_entry for n in nested(d)]
    return [descriptor, *inner]


def test_all_messages_of_the_access_log_are_compared() -> None:
    every = [n for d in log.DESCRIPTOR.message_types_by_name.values() for n in nested(d)]
    assert every == [ours.DESCRIPTOR for ours, _ in LOG_PAIRS]


@pytest.mark.parametrize(("ours", "theirs"), both(), ids=lambda value: getattr(value, "name", ""))
def test_every_message_has_envoys_fields(ours: Descriptor, theirs: Any) -> None:
    left_out = {name for message, name in LEFT_OUT if message == ours.name}
    assert {field.name for field in dataclasses.fields(theirs)} - left_out == set(ours.fields_by_name)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [*both(), *((ours.DESCRIPTOR, theirs) for ours, theirs in LOG_PAIRS)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_field_is_envoys(ours: Descriptor, theirs: Any) -> None:
    their_fields = {field.name.rstrip("_"): field for field in dataclasses.fields(theirs)}
    for field in ours.fields:
        annotation = str(their_fields[field.name].type)
        their = their_fields[field.name].metadata["betterproto"]
        assert field.number == their.number, field.name
        group = field.containing_oneof.name if field.containing_oneof else None
        assert group == their.group, field.name
        entry = map_entry(field)
        if entry is not None:
            assert their.proto_type == "map"
            key, value = (entry.fields_by_name[name] for name in ("key", "value"))
            assert [PROTO_TYPES[key.type], PROTO_TYPES[value.type]] == [
                part.proto_type for part in their.map_meta
            ]
            if value.message_type is not None:
                assert annotation.rstrip("]\"'").endswith(type_name(value)), field.name
            continue
        assert PROTO_TYPES[field.type] == their.proto_type, field.name
        assert field.is_repeated == their.repeated, field.name
        if field.type == FieldDescriptor.TYPE_MESSAGE and their.unwrap is not None:
            assert type_name(field) == their.unwrap().__name__
        elif field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_ENUM):
            bare = annotation.removesuffix(" | None").removeprefix("list[").removesuffix("]").strip("\"'")
            assert bare.rsplit(".", 1)[-1] == type_name(field), field.name


@pytest.mark.parametrize(("ours", "theirs"), enums(), ids=lambda value: getattr(value, "name", ""))
def test_every_enum_value_is_envoys(ours: EnumDescriptor, theirs: Any) -> None:
    assert {value.name: value.number for value in ours.values} == {
        value.name: value.value for value in theirs
    }


def test_our_names_for_body_modes_are_the_wires() -> None:
    wire = processing_mode_pb2.ProcessingMode.BodySendMode
    assert {mode.name: mode.value for mode in BodyMode} == dict(wire.items())


def test_our_messages_clash_with_no_definition_of_envoys() -> None:
    for ours, _ in PAIRS:
        assert not ours.DESCRIPTOR.name.startswith("envoy/")
        assert not ours.DESCRIPTOR.package.startswith("envoy")


needs_protoc = pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed"
)


@needs_protoc
def test_generated_code_is_fresh(tmp_path: Path) -> None:
    """Compares the embedded descriptors: another protoc words the rest differently."""
    generate(tmp_path)
    descriptors = [
        {
            path.name: re.search(r"AddSerializedFile\((.*)\)", path.read_text())
            for path in folder.glob("*_pb2.py")
        }
        for folder in (tmp_path / "epp" / "pb", Path(core_pb2.__file__).parent)
    ]
    fresh, committed = ({name: found and found[1] for name, found in each.items()} for each in descriptors)
    assert fresh == committed, "run `make protos`"
