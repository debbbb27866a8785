"""Response headers that name the endpoint that served, and the rule of a refusal, through a real Envoy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from tests.kit.engines import Answered, Engine, EngineServing
from tests.kit.modes import TwoEngines
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT, REFUSAL = "x-epp-endpoint", "x-epp-refusal"
TOLD = {"request": {"tell_endpoint": True}, "envoy": {"endpoint_header": True}}


@pytest.mark.parametrize("variant", list(Variant))
async def test_answers_name_who_served(tmp_path: Path, variant: Variant) -> None:
    policy = {"name": "round-robin", "fallbacks": int(variant is not Variant.ORIGINAL_DST)}
    async with TwoEngines(tmp_path, variant=variant, policy=policy, **TOLD) as engines:

        async def ask() -> tuple[int, str, str]:
            async with engines.http.post(engines.url + CHAT, json=chat_body("hello")) as answer:
                served = json.loads(await answer.text()).get("served", "")
                return answer.status, served, answer.headers.get(ENDPOINT, "")

        seen = [await ask() for _ in range(4)]
        assert seen == [(200, served, served) for _, served, _ in seen]
        assert {served for _, served, _ in seen} == set(engines.addresses)
        if variant is not Variant.ORIGINAL_DST:
            gone, left = engines.engines
            await gone.__aexit__(None, None, None)
            assert [await ask() for _ in range(2)] == [(200, left.address, left.address)] * 2, (
                "whoever was picked"
            )


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_refusal_names_its_rule_and_engines_names_do_not_count(
    tmp_path: Path, variant: Variant
) -> None:
    forged = {ENDPOINT: "evil", REFUSAL: "evil"}
    engine = Engine(["m"], answer=lambda _: Answered([b"{}"], headers=forged))
    for told in (TOLD, {}):
        async with EngineServing(tmp_path, [engine], variant=variant, **told) as serving:
            async with serving.http.post(serving.url + CHAT, json=chat_body("hello", model="m")) as answer:
                assert answer.headers.get(ENDPOINT) == (engine.address if told else None)
                assert REFUSAL not in answer.headers
            async with serving.http.post(serving.url + CHAT, json=chat_body("hello", model="x")) as answer:
                assert (answer.status, answer.headers.get(REFUSAL)) == (404, "model" if told else None)
                assert ENDPOINT not in answer.headers
            async with serving.http.get(serving.url + "/sleep") as answer:
                assert answer.status == 404
                assert ENDPOINT not in answer.headers
