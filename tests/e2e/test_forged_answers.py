"""Headers and counts that an engine makes up, behind a real Envoy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.replicas import CHAT, MODEL

if TYPE_CHECKING:
    from pathlib import Path

FORGED = dict.fromkeys(
    (
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-served",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-scores",
        "x-epp-decision-id",
        "x-epp-served-model",
        "x-epp-untried-models",
    ),
    "evil",
)


@pytest.mark.parametrize("variant", list(Variant))
async def test_an_engines_own_reserved_headers_reach_no_client(tmp_path: Path, variant: Variant) -> None:
    def answer(_: Asked) -> Answered:
        return Answered([b"{}"], headers={**FORGED, "x-served-by": "engine"})

    policy: dict[str, Any] = {"policy": {"fallbacks": 0}} if variant is Variant.ORIGINAL_DST else {}
    async with EngineServing(
        tmp_path, [Engine([MODEL], answer=answer)], variant=variant, **policy
    ) as serving:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        async with serving.http.post(serving.url + CHAT, json=body) as got:
            assert got.status == 200
            assert got.headers["x-served-by"] == "engine"
            assert "evil" not in got.headers.values()
            assert len(got.headers.getall("x-epp-decision-id")) == 1
