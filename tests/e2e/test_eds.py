"""The pool file is followed by Envoy, too: a real Envoy, a real picker process, simulated replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epp.cli import main
from epp.config.pool import EndpointSpec
from tests.e2e.test_faults import STEADY
from tests.kit.picker import Serving
from tests.kit.records import recorded
from tests.kit.replicas import quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


async def health_by_host(serving: Serving) -> dict[str, str]:
    """What Envoy's cluster of endpoints holds: address to the health that EDS told."""
    pages = await serving.envoy.admin_json("/clusters")
    (hosts,) = (
        page.get("host_statuses", []) for page in pages["cluster_statuses"] if page["name"] == "replicas"
    )
    sockets = [host["address"]["socket_address"] for host in hosts]
    health = [host["health_status"].get("eds_health_status", "") for host in hosts]
    names = [f"{socket['address']}:{socket['port_value']}" for socket in sockets]
    return dict(zip(names, health, strict=True))


async def until_held(serving: Serving, wanted: Callable[[dict[str, str]], bool]) -> None:
    async def held() -> bool:
        return wanted(await health_by_host(serving))

    await until(held)


async def test_an_answer_under_way_outlives_the_draining_and_the_removal_of_its_replica(
    tmp_path: Path,
) -> None:
    slow = [quick_config(name, engine_class=STEADY, answer_tokens=400) for name in "ab"]
    async with Serving(tmp_path, replicas=slow) as serving:
        a, b = (EndpointSpec(address=replica.address) for replica in serving.replicas)
        serving.write_pool([a])
        await until_held(serving, lambda hosts: list(hosts) == [a.address])
        async with serving.answering(max_tokens=300) as answer:
            serving.write_pool([EndpointSpec(address=a.address, draining=True), b])
            await until_held(serving, lambda hosts: hosts.get(a.address) == "DRAINING")
            serving.write_pool([b])
            await until_held(serving, lambda hosts: a.address not in hosts)
            assert (await answer.read()).rstrip().endswith(b"data: [DONE]")


async def test_a_pick_that_envoy_cannot_honour_is_counted_logged_once_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Envoy follows a file that the picker does not write."""
    async with Serving(tmp_path, envoy={"eds_path": str(tmp_path / "other.json")}) as serving:
        picker = serving.picker
        endpoints = [EndpointSpec(address=replica.address).endpoint() for replica in serving.replicas]
        lost = endpoints[0].address

        async with asyncio.timeout(240):
            for times in (1, 2):
                serving.envoy.write_endpoints(endpoints[1:])
                await until_held(serving, lambda hosts: lost not in hosts)
                await picker.until_metric(
                    "epp_requests_in_flight", lambda count: count == 0
                )  # all are reported
                reported = await picker.metric("epp_picks_not_honoured_total")
                while await picker.metric("epp_picks_not_honoured_total") < reported + 5:
                    assert (await serving.chat())[0] == 200
                assert picker.log().count(f"Envoy did not honour a decision for {lost}") == times
                serving.envoy.write_endpoints(endpoints)
                await until_held(serving, lambda hosts: lost in hosts)
                before = serving.replicas[0].requests
                while serving.replicas[0].requests < before + 5:
                    await serving.chat()
        outcomes = [record for record in recorded(tmp_path / "records") if record["kind"] == "outcome"]
    wrong = next(outcome for outcome in outcomes if outcome["honoured"] is False)
    assert main(["explain", wrong["id"], "--records", str(tmp_path / "records")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Envoy did not honour the decision: it does not know {lost} and used {wrong['served']}" in said
