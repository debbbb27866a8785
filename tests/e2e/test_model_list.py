"""`/v1/models` through a real Envoy: the pool's list to OpenAI's and Anthropic's clients, an engine's without a picker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.kit.picker import Serving
from tests.kit.replicas import quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = [quick_config("a", models=("org/a", "both")), quick_config("b", models=("both", "b"))]
ALL = {"org/a", "both", "b"}


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_clients_are_told_what_the_pool_serves(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, replicas=ENGINES, variant=variant) as serving:
        openai: Any = import_module("openai")
        anthropic: Any = import_module("anthropic")
        client = openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
        other = anthropic.AsyncAnthropic(base_url=serving.url, api_key="none", max_retries=0)
        async with client, other:

            async def listed() -> bool:
                return {model.id async for model in client.models.list()} == ALL

            await until(listed)
            for name in ALL:
                model = await client.models.retrieve(name)
                assert (model.id, model.object) == (name, "model")
                assert (model.model_extra or {})["max_model_len"] > 0
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.models.retrieve("org/none")
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            assert {model.id async for model in other.models.list()} == ALL
            assert (await other.models.retrieve("org/a")).display_name == "org/a"
            with pytest.raises(anthropic.NotFoundError) as missing:
                await other.models.retrieve("org/none")
            assert missing.value.body["error"]["type"] == "not_found_error"
            async with serving.http.get(serving.url + "/tenant/v1/models/?limit=3") as answer:
                assert {each["id"] for each in (await answer.json())["data"]} == ALL
            assert await serving.picker.metric("epp_decisions_total") == 0, "no engine was asked"
            if variant is Variant.STANDALONE:
                await serving.picker.kill()
                found = {model.id async for model in client.models.list()}
                assert found in ({"org/a", "both"}, {"both", "b"})
