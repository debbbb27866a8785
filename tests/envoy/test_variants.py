"""Each variant with a real Envoy, tiny replicas and an independent ext_proc server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant

if TYPE_CHECKING:
    from tests.envoy.conftest import Answer, Rig

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]


def forged(address: str) -> dict[str, str]:
    return {
        "x-gateway-destination-endpoint": address,
        "X-Gateway-Destination-Endpoint-Subset": address,
        "x-gateway-destination-endpoint-served": address,
        "x-envoy-original-dst-host": address,
    }


async def until_back(rig: Rig) -> None:
    """Ask until the picker decides again: its first pick after a restart is the proof."""
    rig.picker.destination = rig.addresses[0]
    before = len(rig.picker.body_bytes)
    while len(rig.picker.body_bytes) == before:
        await rig.ask()
        await asyncio.sleep(0.02)


async def until_settled(rig: Rig) -> Answer:
    """Full duplex notices a dead picker by its health check; until then a request with a body fails."""
    while (answer := await rig.ask()).status == 503:
        assert rig.settings.variant is Variant.FULL_DUPLEX
        await asyncio.sleep(0.02)
    return answer


async def test_destination_is_honoured(rig: Rig) -> None:
    for address in rig.addresses * 2:
        rig.picker.destination = address
        answer = await rig.ask()
        assert (answer.status, answer.served) == (200, address)


async def test_forged_headers_never_choose_while_the_picker_is_alive(rig: Rig) -> None:
    first, second, _ = rig.addresses
    rig.picker.destination = first
    assert (await rig.ask(headers=forged(second))).served == first
    seen = rig.picker.headers[-1]
    assert not [name for name in seen if name.startswith("x-gateway-destination-endpoint")]
    assert "x-envoy-original-dst-host" not in seen


async def test_envoy_itself_lets_no_client_name_workers(rig: Rig) -> None:
    """The kit's picker removes nothing."""
    named = ("x-prefiller-host-port", "X-Encoder-Hosts-Ports", "x-data-parallel-host-port")
    rig.picker.destination = rig.addresses[0]
    assert (await rig.ask(headers=dict.fromkeys(named, rig.addresses[1]))).status == 200
    assert not rig.replicas[0].headers[-1].keys() & {name.lower() for name in named}


async def test_unknown_destinations_are_passed_over_or_refused(rig: Rig) -> None:
    rig.picker.destination = f"127.0.0.1:1,{rig.addresses[1]}"
    answer = await rig.ask()
    if rig.settings.variant is Variant.ORIGINAL_DST:
        assert answer.status == 503
    else:
        assert (answer.status, answer.served) == (200, rig.addresses[1])


async def test_picker_killed_and_back(rig: Rig) -> None:
    first, second, _ = rig.addresses
    await rig.picker.stop()
    try:
        if rig.settings.variant is Variant.ORIGINAL_DST:
            answers = [await rig.ask(headers=forged(second)) for _ in range(4)]
            assert {answer.status for answer in answers} == {503}
        else:
            assert (await until_settled(rig)).status == 200
            answers = [await rig.ask(headers=forged(second)) for _ in range(20)]
            assert {answer.status for answer in answers} == {200}
            assert {answer.served for answer in answers} - {second}
    finally:
        await rig.picker.start()
    async with asyncio.timeout(240):
        await until_back(rig)
    assert (await rig.ask()).served == first
