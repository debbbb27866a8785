"""Who answers when the engine picked is gone, in pools of several models: a real Envoy and picker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.e2e.test_refusals import told
from tests.kit.engines import Engine, EngineServing
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def serving(folder: Path, engines: list[Engine], **options: Any) -> EngineServing:
    """No probes: nothing but requests tells that an engine is gone."""
    return EngineServing(
        folder, engines, **{"probe": {"interval_s": 0}, "scrape": {"interval_s": 0}, **options}
    )


@pytest.mark.parametrize(("variant", "fallbacks"), [(Variant.STANDALONE, 2), (Variant.FULL_DUPLEX, 0)])
async def test_a_model_whose_engine_is_gone_is_answered_by_no_other(
    tmp_path: Path, variant: Variant, fallbacks: int
) -> None:
    tiny, foo = Engine(["tiny"], answer=told), Engine(["foo"], answer=told)
    policy = {"name": "round-robin", "fallbacks": fallbacks}
    async with serving(tmp_path, [tiny, foo], variant=variant, policy=policy) as served:
        assert [(await served.chat(model=name))[0] for name in ("tiny", "foo")] == [200, 200]
        await foo.__aexit__()
        assert {(await served.chat(f"question {n}", model="foo"))[0] for n in range(6)} == {503}
        assert len(tiny.asked) == 1
        assert (await served.chat(model="tiny"))[0] == 200


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_fail_closed_nobody_answers_while_the_picker_is_dead(tmp_path: Path, variant: Variant) -> None:
    closed = {"fail_closed": True}
    async with serving(tmp_path, [Engine(["tiny"], answer=told)], variant=variant, envoy=closed) as served:
        assert (await served.chat(model="tiny"))[0] == 200
        await served.picker.kill()
        assert {(await served.chat(model="tiny"))[0] for _ in range(4)} == {503}
        await served.picker.start()

        async def back() -> bool:
            return (await served.chat(model="tiny"))[0] == 200

        await until(back)
