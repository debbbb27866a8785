"""Our access log messages are read as another library writes them."""

from __future__ import annotations

from epp.pb import access_log_pb2 as ours
from tests.observe.entries import als, entry


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
