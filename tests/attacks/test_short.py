"""Each attack for a moment beside peers that behave, on one picker: all are served, memory stays in its bounds.

No time is judged here, for the machine may be busy: times are printed. `python -m tests.attacks` judges them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attacks.__main__ import header, line, memory_problem
from tests.attacks.floods import FLOODS
from tests.attacks.panic import statuses
from tests.attacks.peers import PEER_ATTACKS
from tests.attacks.pickers import ISTIO, alone, gateway, together
from tests.kit.envoy import require_envoy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.attacks.rig import Rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with alone() as found:
        yield found


@pytest.mark.parametrize("name", FLOODS)
def test_peers_that_behave_are_served(rig: Rig, capsys: pytest.CaptureFixture[str], name: str) -> None:
    row = rig.run(name, seconds=0.2, connections=4, slow_ms=5000, quiet_s=0.1)
    with capsys.disabled():
        print(f"\n{header(row)}" if name == next(iter(FLOODS)) else "", line(row), sep="\n")
    assert not row.failures
    assert not memory_problem(row)
    assert not row.cut_short
    assert row.tally["made"], "nothing was attacked"


@pytest.fixture(scope="module")
def pair() -> Iterator[Rig]:
    with together() as found:
        yield found


@pytest.mark.parametrize("name", PEER_ATTACKS)
def test_who_attacks_over_nats_stops_neither_picks_nor_sharing(
    pair: Rig, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    row = pair.run(name, seconds=0.2, connections=2, slow_ms=5000, quiet_s=0.1)
    with capsys.disabled():
        print(f"\n{line(row)}")
    assert not row.failures
    assert not memory_problem(row)
    assert not row.cut_short
    assert row.tally["made"], "nothing was attacked"


@pytest.mark.envoy
async def test_no_request_fails_though_nearly_all_of_the_pool_is_dead() -> None:
    require_envoy()
    assert set(await statuses(120, dead=60)) == {200}


@pytest.mark.envoy
async def test_an_envoy_as_istio_configures_it_sends_requests_where_the_picker_says(tmp_path: Path) -> None:
    """Or the attacks behind it would show nothing: without a pick it is round robin."""
    require_envoy()
    async with gateway(ISTIO, tmp_path) as serving:
        for number in range(6):
            before = [replica.requests for replica in serving.replicas]
            status, _ = await serving.chat(f"question {number}")
            assert status == 200
            served = [
                replica.address
                for replica, count in zip(serving.replicas, before, strict=True)
                if replica.requests > count
            ]
            async with serving.http.get(f"http://{serving.picker.http}/decisions/newest") as answer:
                decision = await answer.json()
            assert served == [decision["endpoints"][decision["chosen"]]]
