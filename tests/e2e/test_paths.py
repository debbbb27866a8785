"""What real requests through a real Envoy tell of connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epp.ops.doctor.context import Page
from tests.kit.picker import Serving

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 12


async def test_every_request_tells_whether_its_connection_was_there(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        for number in range(COUNT):
            status, _ = await serving.chat(f"question {number}: " + "many words " * 500, stream=True)
            assert status == 200

        async def told() -> dict[str, float]:
            return Page(await serving.picker.metrics()).by("epp_path_requests_total", "connection")

        async with asyncio.timeout(240):  # reports come a little later than answers
            while sum((await told()).values()) < COUNT / 2:  # of retried ones nobody knows
                await asyncio.sleep(0.1)
        assert (await told())["cold"] >= 1, "nobody had a connection at first"
        assert await serving.picker.metric("epp_path_network_seconds", connection="cold") > 0
