"""Reports about decisions of other processes are passed on as they came; what is none is refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.errors import UnreadableError
from epp.pb.access_log_pb2 import HTTPAccessLogEntry
from epp.request.access_log import Attempt, Report, decode
from epp.request.routed_reports import RoutedReports
from epp.server.process import DecisionIds

if TYPE_CHECKING:
    from collections.abc import Callable


class Told:
    """Takes reports.

    Attributes:
        calls: what was told, with its name.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *told: self.calls.append((name, *told))


def report_on(decision_id: str) -> Report:
    """Make a report in which Envoy saw no times."""
    return msgspec.structs.replace(decode(HTTPAccessLogEntry()), decision_id=decision_id)


def tell(reports: RoutedReports, decision_id: str) -> None:
    """Tell all that there is to tell of a decision."""
    reports.first_token(decision_id)
    reports.stored(decision_id, "resp_1")
    reports.attempted(Attempt(decision_id, ("10.0.0.1:1",), "10.0.0.1:1", 503, "1", unserved=False))
    reports.finished(report_on(decision_id))


def test_each_report_reaches_the_process_that_decided() -> None:
    ids, told = [DecisionIds(), DecisionIds()], [Told(), Told()]
    pickers: dict[str, RoutedReports] = {}
    for own, one in zip(ids, told, strict=True):
        one_: Any = one
        pickers[own.prefix] = RoutedReports(one_, own.maker_of, lambda to, data: pickers[to].take(data))
    tell(pickers[ids[0].prefix], ids[1]())
    tell(pickers[ids[1].prefix], ids[1]())
    names = ["first_token", "stored", "attempted", "finished"]
    assert [call[0] for call in told[1].calls] == names * 2
    assert not told[0].calls
    passed = told[1].calls[3][1]
    assert passed.decision_id == f"{ids[1].prefix}-1"
    assert math.isnan(passed.e2e_ms)
    assert told[1].calls[2][1].following == ""


@pytest.mark.parametrize("decision_id", ["", "-1", "*", "0123456789abcdeg-1", "0123456789ABCDEF-1", "a.>-1"])
def test_what_is_no_decision_id_stays_here(decision_id: str) -> None:
    told: Any = Told()
    tell(RoutedReports(told, DecisionIds().maker_of, lambda *_: pytest.fail("passed on")), decision_id)
    assert len(told.calls) == 4


@pytest.mark.parametrize(
    "data", [b"", b"?", b"F", b"F\xff", b"F\x91\xc0", b"I\x91\xa1a", b"R\x91\x80", b"F" * 70_000]
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    told: Any = Told()
    with pytest.raises(UnreadableError):
        RoutedReports(told, lambda _: None, lambda *_: None).take(data)
    assert not told.calls
