"""Replicas that answer 429 with Retry-After, behind a real Envoy that tells the picker in either way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from tests.kit.picker import Serving, until_seen

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS = 8
LEFT_ALONE = "epp_endpoint_unavailable"


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_while_one_replica_asks_for_peace_the_others_serve(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, variant=variant) as serving:
        victim = serving.replicas[0]
        async with serving.under_load(CLIENTS) as seen:
            await until_seen(seen, 50)
            victim.refusal = (429, 60)
            await serving.picker.until_metric(
                LEFT_ALONE, lambda value: value > 0, endpoint=victim.address, reason="retry-after"
            )
            # Those that were on their way there when its first refusal was known.
            await until_seen(seen, 2 * CLIENTS)
            had = victim.requests
            await until_seen(seen, 300)
        assert victim.requests == had, "none is sent there after the first few"
        assert set(seen) == {200}, "those were served elsewhere"
