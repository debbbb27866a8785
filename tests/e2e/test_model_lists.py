"""Adapters that come and go while engines run: who is asked for them, and what clients see. A real Envoy and picker."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from tests.e2e.test_models import whole
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def serve_listed(engines: list[Engine]) -> None:
    """Let engines answer 404 for models that they do not list."""

    def answer(asked: Asked) -> Answered:
        engine = next(each for each in engines if each.address == asked.upstream)
        if asked.fields["model"] in (engine.listed or ()):
            return whole(asked)
        error = {"message": f"The model `{asked.fields['model']}` does not exist.", "code": 404}
        return Answered([json.dumps({"error": {**error, "type": "NotFoundError"}}).encode()], status=404)

    for engine in engines:
        engine.answer = answer


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_a_model_that_an_engine_has_just_begun_to_list_is_served_at_the_first_request(
    tmp_path: Path, variant: Variant
) -> None:
    engines = [Engine(["base"], answer=whole, listed=["base"]) for _ in range(2)]
    async with EngineServing(tmp_path, engines, variant=variant) as serving:
        assert (await serving.chat(model="late"))[0] == 404
        engines[1].listed = ["base", "late"]
        answered = await asyncio.gather(*(serving.chat(f"question {n}", model="late") for n in range(6)))
        assert [(status, body["model"]) for status, body in answered] == [(200, "late")] * 6
        assert {one.upstream for one in engines[1].asked} == {engines[1].address}
        assert not engines[0].asked


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_an_engine_that_has_unloaded_a_model_is_asked_for_it_no_more(
    tmp_path: Path, variant: Variant
) -> None:
    engines = [Engine(["base", "sql"], listed=["base", "sql"]) for _ in range(2)]
    serve_listed(engines)
    first, second = engines
    async with EngineServing(tmp_path, engines, variant=variant, policy={"name": "round-robin"}) as serving:

        async def refused(engine: Engine) -> bool:
            status, _ = await serving.chat(model="sql")
            labels = {"endpoint": engine.address, "event": "model-refused"}
            return status == 200 and await serving.picker.metric("epp_endpoint_events_total", **labels) == 1

        assert {(await serving.chat(model="sql"))[0] for _ in range(4)} == {200}
        first.listed = ["base"]
        await until(lambda: refused(first))
        asked = len(first.asked)
        assert [(await serving.chat(model="sql"))[0] for _ in range(12)] == [200] * 12
        assert len(first.asked) == asked
        assert {(await serving.chat(model="base"))[0] for _ in range(4)} == {200}
        assert len(first.asked) > asked, "it has lost one name, and no other"
        first.listed, second.listed = ["base", "sql"], ["base"]
        await until(lambda: refused(second))
        assert [(await serving.chat(model="sql"))[0] for _ in range(12)] == [200] * 12


async def test_unknown_names_cost_an_engine_a_list_a_second_and_hold_few_requests(tmp_path: Path) -> None:
    engine = Engine(["base"], answer=whole, listed=["base"])
    async with EngineServing(tmp_path, [engine]) as serving:
        await until(lambda: engine.lists > 0)
        lists, began_s = engine.lists, time.monotonic()
        answers = await asyncio.gather(*(serving.chat(model=f"name-{n}") for n in range(200)))
        assert {status for status, _ in answers} == {404}
        assert engine.lists - lists <= time.monotonic() - began_s + 1.0
        assert (await serving.chat(model="base"))[0] == 200
