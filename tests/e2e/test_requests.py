"""Requests as clients send them, through a real Envoy to the endpoint that the picker chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from tests.kit.picker import Serving
from tests.kit.replicas import quick_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_body_of_20_mb_is_priced_and_arrives_whole(tmp_path: Path, variant: Variant) -> None:
    replicas = [quick_config("a")]
    async with Serving(
        tmp_path, replicas=replicas, variant=variant, envoy={"message_timeout_ms": 10_000}
    ) as serving:
        status, body = await serving.chat("0123456789abcdef" * (20 * 1024 * 1024 // 16))
        assert status == 400, "the replica's context is shorter, and it says so itself"
        assert "context length" in body["error"]["message"]
        assert await serving.picker.metric("epp_decisions_total", basis="policy") == 1
