"""What real requests through a real Envoy tell of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.picker import Serving
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 12


async def test_every_request_tells_whether_its_connection_was_there(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        for number in range(COUNT):
            status, _ = await serving.chat(f"question {number}: " + "many words " * 500, stream=True)
            assert status == 200

        async def told() -> bool:  # reports come later than answers, and of retried requests nobody knows
            return await serving.picker.metric("epp_path_requests_total") >= COUNT / 2

        await until(told)
        cold = await serving.picker.metric("epp_path_requests_total", connection="cold")
        assert cold >= 1, "nobody had a connection at first"
        assert await serving.picker.metric("epp_path_network_seconds", connection="cold") > 0
