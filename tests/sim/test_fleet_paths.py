"""What a simulated picker hears of connections, and what it then knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.lab.sim.run import run_window
from epp.lab.sim.scenario import ConnectionReports, FleetSpec
from tests.kit.simfleet import options, request, still_fleet
from tests.sim.test_fleet_window import Spy

if TYPE_CHECKING:
    from epp.types import Snapshot

#: A body beyond the first flight: 100 tokens of 500 bytes.
BYTES_PER_TOKEN = 500.0


def fleet(keep_alive_s: float = 60.0) -> FleetSpec:
    spec = still_fleet()
    network = replace(spec.replicas[0].network, keep_alive_s=keep_alive_s)
    return FleetSpec((replace(spec.replicas[0], network=network),))


def seen(spec: FleetSpec, told: ConnectionReports, gap_ms: float, count: int = 30) -> list[Snapshot]:
    spy = Spy()
    load = [
        request(number * gap_ms, prompt_tokens=100, family=number, session=str(number))
        for number in range(count)
    ]
    set_up = options(report_connections=told, bytes_per_token=BYTES_PER_TOKEN)
    run_window(load, spec, spy, options=set_up)
    return spy.seen


def test_by_default_nothing_is_told() -> None:
    assert all(
        view.cold_chance[0] == view.connect_ms[0] == 0.0
        for view in seen(fleet(), ConnectionReports.NONE, 1e3)
    )


def test_connections_that_stay_open_are_known_to() -> None:
    last = seen(fleet(), ConnectionReports.EARLY, 2_000.0)[-1]
    assert last.cold_chance[0] < 0.05
    assert last.connect_ms[0] == pytest.approx(100.0)


def test_connections_that_close_between_requests_are_known_to() -> None:
    last = seen(fleet(keep_alive_s=1.0), ConnectionReports.EARLY, 2_000.0)[-1]
    assert last.cold_chance[0] > 0.9


def test_windows_that_stay_open_are_seen_where_headers_do_not_wait() -> None:
    early = seen(fleet(), ConnectionReports.EARLY, 400.0)[-1].upload_rounds[0]
    late = seen(fleet(), ConnectionReports.LATE, 400.0)[-1].upload_rounds[0]
    assert early == pytest.approx(0.0, abs=0.01), "all of it goes at once"
    assert early < late <= 1.0, "a prefill is taken for a slow path, never the other way round"
