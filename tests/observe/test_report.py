"""What an access log entry means."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.apis.failure import AnswerFailure
from epp.apis.usage import NO_USAGE, Usage
from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.request.access_log import AccessLogReceiver, Termination, decode
from tests.observe.entries import START, entry, wire

if TYPE_CHECKING:
    from epp.request.access_log import Attempt, Report

FIRST_US = START.timestamp() * 1e6 + 120_500


def report(**values: Any) -> Report:
    message = StreamAccessLogsMessage.FromString(wire(entry(**values)))
    return decode(message.http_logs.log_entry[0])


def test_a_request_that_went_well() -> None:
    told = report(
        seen={
            "first_us": FIRST_US,
            "streamed": True,
            "chunks": 7,
            "usage": '"usage": {"prompt_tokens": 5, "completion_tokens": 2}',
            "response_id": "resp_1",
        },
        tags={"connect_us": "1500", "fresh_us": "-"},
        time_to_last_rx_byte=timedelta(milliseconds=1),
        time_to_first_upstream_tx_byte=timedelta(milliseconds=3),
        time_to_first_upstream_rx_byte=timedelta(milliseconds=100),
    )
    assert (told.decision_id, told.status, told.cause) == ("d-1", 200, Termination.COMPLETED)
    assert (told.picked, told.served) == (("10.0.0.1:8001", "10.0.0.2:8001"), "10.0.0.1:8001")
    assert (told.attempts, told.response_bytes) == (1, 309)
    assert told.ttft_ms == pytest.approx(120.5)
    assert (told.e2e_ms, told.received_ms, told.sent_ms, told.headers_ms) == (900, 1, 3, 100)
    assert (told.connect_ms, told.connected_anew) == (1.5, False)
    assert told.unsent_ms == 3.0
    assert told.first_byte_ms == 97.0, "since the first byte sent, the request being here before"
    assert math.isnan(told.opened_ms)
    assert (told.streamed, told.encoding, told.chunks) == (True, "", 7)
    assert (told.usage, told.response_id) == (Usage(5, 2, None), "resp_1")


def test_opening_a_connection_takes_its_handshakes_and_a_slow_client_is_not_the_network() -> None:
    told = report(
        tags={"connect_us": "210000", "fresh_us": "4000"},
        time_to_last_rx_byte=timedelta(milliseconds=600),
        time_to_first_upstream_tx_byte=timedelta(milliseconds=430),
        time_to_first_upstream_rx_byte=timedelta(milliseconds=850),
    )
    assert (told.connected_anew, told.opened_ms) == (True, 426.0)
    assert told.unsent_ms == 600.0
    quick = replace(told, received_ms=1.0)
    assert quick.unsent_ms == 4.0, "opening its connection is the network's"
    assert told.first_byte_ms == 250.0


def test_what_was_not_seen_is_unknown() -> None:
    told = report(status=None, served="", start_time=None, duration=None, destination="", ours={})
    assert (told.decision_id, told.status, told.served, told.picked) == ("", 0, "", ())
    for name in ("ttft_ms", "e2e_ms", "received_ms", "sent_ms", "headers_ms", "connect_ms", "opened_ms",
                 "first_byte_ms"):  # fmt: skip
        assert math.isnan(getattr(told, name)), name
    assert (told.connected_anew, told.streamed, told.chunks, told.usage) == (None, None, None, NO_USAGE)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"flags": ("downstream_connection_termination",)}, Termination.CLIENT_GONE),
        ({"flags": ("downstream_remote_reset", "upstream_remote_reset")}, Termination.CLIENT_GONE),
        ({"flags": ("upstream_remote_reset",)}, Termination.UPSTREAM_RESET),
        ({"flags": ("upstream_connection_termination",)}, Termination.UPSTREAM_RESET),
        ({"flags": ("stream_idle_timeout",)}, Termination.TIMED_OUT),
        ({"flags": ("upstream_request_timeout", "local_reset")}, Termination.TIMED_OUT),
        ({"flags": ("no_healthy_upstream",), "served": ""}, Termination.UNREACHABLE),
        (
            {"flags": ("upstream_connection_failure", "upstream_retry_limit_exceeded")},
            Termination.UNREACHABLE,
        ),
        ({"served": "", "status": 413}, Termination.REFUSED),
        ({"flags": ("overload_manager",), "served": "", "status": 503}, Termination.REFUSED),
        ({"served": "10.0.0.2"}, Termination.RETRIED_ELSEWHERE),
        ({"served": "10.0.0.2", "destination": ""}, Termination.COMPLETED),
        ({"status": 500}, Termination.COMPLETED),
        # Left at the end mark, or in the middle of a whole answer.
        (
            {"flags": ("downstream_connection_termination",), "seen": {"streamed": True, "chunks": 2}},
            Termination.COMPLETED,
        ),
        (
            {"flags": ("downstream_connection_termination",), "seen": {"streamed": False, "chunks": 2}},
            Termination.CLIENT_GONE,
        ),
    ],
)
def test_cause_of_the_end(values: dict[str, Any], cause: Termination) -> None:
    assert report(**values).cause is cause


@pytest.mark.parametrize("moved_us", [-5_000_000, 5_000_000])
def test_a_clock_that_was_set_gives_no_time(moved_us: int) -> None:
    assert math.isnan(report(seen={"first_us": FIRST_US + moved_us}).ttft_ms)


class Sink:
    def __init__(self) -> None:
        self.reports: list[str] = []

    def first_token(self, decision_id: str) -> None:
        raise NotImplementedError

    def stored(self, decision_id: str, response_id: str) -> None:
        raise NotImplementedError

    def attempted(self, attempt: Attempt) -> None:
        raise NotImplementedError

    def finished(self, report: Report) -> None:
        if report.decision_id == "bad":
            raise RuntimeError("no")
        self.reports.append(report.decision_id)


def test_one_bad_report_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    receiver = AccessLogReceiver(sink)
    ids = ("a", "bad", "b")
    receiver.take(wire(*(entry(ours={"decision_id": name}) for name in ids)))
    receiver.take(b"\xff\xff\xff")
    receiver.take(b"")
    assert sink.reports == ["a", "b"]
    assert (receiver.received, receiver.failed, receiver.malformed) == (2, 1, 1)
    assert "a report was lost" in caplog.text


def test_a_message_is_read_to_its_limit() -> None:
    sink = Sink()
    receiver = AccessLogReceiver(sink)
    receiver.take(wire(*[entry(ours={"decision_id": "a"})] * 1002))
    assert (receiver.received, receiver.malformed) == (1000, 2)
    receiver.take(wire(entry(ours={"decision_id": "a" * 300_000})))
    assert (receiver.received, receiver.malformed) == (1000, 3)


def test_the_first_byte_of_a_failed_answer_is_no_first_token_and_its_counts_are_nobodys() -> None:
    told: dict[str, object] = {
        "first_us": START.timestamp() * 1e6 + 1000,
        "usage": '"usage":{"prompt_tokens":5,"completion_tokens":1}',
        "failure": '{"error":{"code":500,"type":"x","message":"m"}}',
    }
    for streamed in (False, True):
        told_of = report(seen={**told, "streamed": streamed})
        assert math.isnan(told_of.ttft_ms) is not streamed
        assert (told_of.usage, told_of.cause) == (NO_USAGE, Termination.FAILED_ANSWER)
        assert told_of.failure == AnswerFailure(500, "x")


def test_a_request_that_came_back_for_another_decision_is_told_by_itself() -> None:
    assert report(status=308, details="internal_redirect").decision_id == ""
