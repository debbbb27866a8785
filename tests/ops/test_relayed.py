"""The doctor where only relays reach the endpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from epp.config.load import parse_config
from epp.config.pool import EndpointSpec
from tests.kit.doctor import examined, findings, noted, said
from tests.kit.relays import certificates
from tests.server.test_poll import ENGINE, relay, through

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.doctor import Found


async def through_relay(folder: Path, address: str, endpoint: str = ENGINE) -> Found:
    configured = {"relays": msgspec.to_builtins(through(folder, address))}
    specs = {endpoint: EndpointSpec(address=endpoint, region="far", kv_capacity_tokens=1000)}
    return await examined(parse_config(json.dumps(configured), "epp.yaml"), specs, requests_sent=False)


async def test_endpoints_are_asked_on_the_way_of_the_probes(tmp_path: Path) -> None:
    asked: list[str] = []
    certificates(tmp_path)
    async with relay(tmp_path, asked) as address:
        report = await through_relay(tmp_path, address)
    assert findings(report) == []
    assert f"{ENGINE}: metrics of vllm, ? KV tokens" in noted(report)
    assert set(asked) == {ENGINE}


async def test_a_host_name_is_asked_for_by_the_address_that_the_relay_knows(tmp_path: Path) -> None:
    asked: list[str] = []
    certificates(tmp_path)
    async with relay(tmp_path, asked) as address:
        await through_relay(tmp_path, address, "localhost:8000")
    assert set(asked) == {"127.0.0.1:8000"}


async def test_what_another_endpoint_answered_is_not_taken_for_the_ones_asked(tmp_path: Path) -> None:
    certificates(tmp_path)
    async with relay(tmp_path, [], served="10.9.9.8:8000") as address:
        (what,) = said(await through_relay(tmp_path, address))
    assert f"the relay did not reach {ENGINE}: 10.9.9.8:8000 answered" in what
