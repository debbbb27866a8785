"""Probes through a relay that is a real Envoy: they reach the endpoint meant, and its death is seen."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from epp.config.pool import EndpointSpec
from epp.config.schema import Scrape
from epp.envoy.process import EnvoyProcess
from epp.server.poll import target_of
from epp.server.relays import RelayedConnection
from epp.signals.endpoint import Endpoint
from tests.kit.envoy import Replica, require_envoy, settings
from tests.kit.relays import certificates, relays

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio]


async def test_each_endpoint_is_reached_through_its_relay_and_a_dead_one_is_not(tmp_path: Path) -> None:
    require_envoy()
    folder = certificates(tmp_path)
    async with AsyncExitStack() as stack:
        living, dying = [await stack.enter_async_context(Replica()) for _ in range(2)]
        known = relays(folder, ("far",), probes="relay")
        as_relay = msgspec.structs.replace(
            known, cert_file=str(folder / "relay.crt"), key_file=str(folder / "relay.key")
        )
        local = settings([Endpoint(one.address, region="far") for one in (living, dying)], 1, relays=as_relay)
        local = replace(local, observe=False)
        await stack.enter_async_context(EnvoyProcess(local, relay="far", folder=folder / "far"))
        asked = {}
        for one in (living, dying):
            spec = EndpointSpec(address=one.address, region="far")
            through = target_of(one.address, spec, Scrape(), known).through
            assert through is not None
            asked[one.address] = RelayedConnection(through, one.address, str, max_body_bytes=1_000_000)
            stack.callback(asked[one.address].close)
        for address, connection in asked.items():
            assert (await connection.get("/health", {}, 20.0)).served == address
        await dying.stop()
        with pytest.raises(ConnectionError, match="did not reach"):
            await asked[dying.address].get("/health", {}, 20.0)
        assert (await asked[living.address].get("/health", {}, 20.0)).served == living.address
