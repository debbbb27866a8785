"""`epp bench peers`: gateways before the same replicas, and what is said of ours beside them."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from epp_lab.bench import peers
from epp_lab.bench.peers import ALONE, COST, IDLE, MEASURES, OURS
from epp_lab.experiment import CellRun

DIRECT = "direct"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
    cells = {
        "chat": peers.RivalCell(1, partial(peers.chat, seconds=0.5), quiet_s=0.2),
        "one dies": peers.RivalCell(2, partial(peers.chat, seconds=1.0), slowdown=0.0),
    }
    monkeypatch.setattr(peers, "CELLS", cells)
    monkeypatch.setattr(peers, "FIRST_PORT", found)
    monkeypatch.setattr(peers, "_SETTLE_S", 0.0)
    monkeypatch.setattr(peers, "_FAULT_AT_S", 0.5)
    return found


@pytest.mark.envoy
@pytest.mark.parametrize("entry", [OURS, ALONE, DIRECT])
def test_a_gateway_is_measured(entry: str, port: int) -> None:
    found = peers.run_one({DIRECT: f"http://127.0.0.1:{port}"}, "chat", entry, 0)
    assert tuple(found) == MEASURES
    assert (found["failed"], found["hottest / mean"]) == (0, 1.0)
    assert 0 < found["TTFT p50 ms"] < found["E2E p50 ms"]
    # Of a gateway that somebody else runs no CPU is known.
    assert (found[COST] == found[COST]) is (entry != DIRECT)


@pytest.mark.envoy
def test_where_a_replica_dies_the_others_serve(port: int) -> None:
    found = peers.run_one({}, "one dies", ALONE, 0)
    assert COST not in found
    assert found["hottest / mean"] < 2.0


def test_ours_is_held_against_the_best_of_the_others() -> None:
    def runs(entry: str, ttft_ms: float, cost_ms: float, failed: int) -> list[CellRun]:
        return [
            CellRun(
                cell,
                entry,
                seed,
                "",
                {"TTFT p95 ms": ttft_ms + seed, COST: cost_ms, IDLE: 5.0, "failed": failed},
            )
            for cell in ("chat", "burst", "one dies")
            for seed in range(4)
        ]

    found = [*runs(OURS, 101, 3.0, 1), *runs(ALONE, 200, 2.0, 1), *runs("other", 100, 4.0, 0)]
    text = peers.report(found, (OURS, ALONE, "other"))
    assert "| TTFT p95 ms | 102.5 [" in text
    for line in (
        "chat, TTFT p95 ms: 102.5, goal 10",
        f"chat, {COST}: 3, goal 3.4: met",
        f"chat, {IDLE}: 5, goal 4: MISSED",
        "one dies, failed: 1, goal 1: met",
    ):
        assert line in text
