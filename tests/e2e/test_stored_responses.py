"""Follow-ups of responses that one replica alone stores, under a policy that spreads. A real Envoy and picker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from tests.kit.picker import Serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_follow_ups_find_the_replica_that_stores_the_response(tmp_path: Path, variant: Variant) -> None:
    async with Serving(
        tmp_path, variant=variant, policy={"name": "random", "fallbacks": 0}, records={}
    ) as serving:
        for stream in (False, True):
            status, response_id = await serving.respond(stream=stream)
            seen = [status]
            for number in range(10):
                status, response_id = await serving.respond(
                    f"turn {number}", previous_response_id=response_id, stream=stream
                )
                seen.append(status)
            assert seen == [200] * 11
        assert (await serving.respond(previous_response_id="resp_unknown"))[0] == 404
