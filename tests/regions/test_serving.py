"""Regions as peers, all of it real: pickers, Envoys, NATS, replicas that answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.records.schema import join
from tests.kit.nats import nats_server
from tests.kit.records import recorded
from tests.kit.regions import BOUND, World, one_each, world
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.lab.demo.nats import Nats

pytestmark = pytest.mark.envoy


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Nats]:
    async with nats_server(tmp_path) as server:
        yield server


async def served(made: World, home: str, **options: object) -> dict[str, int]:
    before = {name: serving.replicas[0].requests for name, serving in made.regions.items()}
    status, body = await made.regions[home].chat(**options)
    assert status == 200, body
    return {
        name: serving.replicas[0].requests - before[name] for name, serving in made.regions.items()
    }


async def test_a_request_bound_to_a_peer_is_answered_there_and_told_in_both(tmp_path: Path, nats: Nats) -> None:
    async with world(tmp_path, nats, one_each("eu", "us")) as made:
        await made.meet()
        eu, us = made.regions.values()
        assert await served(made, "eu") == {"eu": 1, "us": 0}
        assert await served(made, "eu", headers={BOUND: "us"}) == {"eu": 0, "us": 1}
        assert await eu.picker.metric("epp_region_forwarded_total", region="us") == 1

        def done() -> list[dict[str, object]]:
            ends = [each for each in join(recorded(us.folder / "records")) if each.outcome]
            return ends

        await until(lambda: len(done()) == 1)
        (there,) = done()
        (here,) = [
            each
            for each in join(recorded(eu.folder / "records"))
            if each.decision["id"] == there.decision["origin_decision"]
        ]
        assert there.decision["origin_region"] == "eu"
        assert here.outcome["cause"] == there.outcome["cause"] == "completed"
        assert here.outcome["completion_tokens"] == there.outcome["completion_tokens"] > 0
