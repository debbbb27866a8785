"""Who answers when the engine picked is gone, in pools of several models: a real Envoy and picker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def told(_: Asked) -> Answered:
    return Answered([b'{"choices": [{"message": {"content": "yes"}}], "usage": {"completion_tokens": 1}}'])


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


async def test_all_engines_of_a_model_are_tried_however_many_have_gone(tmp_path: Path) -> None:
    others, ours = [Engine(["tiny"]) for _ in range(2)], [Engine(["foo"], answer=told) for _ in range(4)]
    async with serving(tmp_path, [*others, *ours], policy={"name": "round-robin"}) as served:
        for gone in ours[:3]:
            await gone.__aexit__()
        assert {(await served.chat(f"question {n}", model="foo"))[0] for n in range(8)} == {200}
        assert len(ours[3].asked) == 8
        assert not any(other.asked for other in others)


async def test_an_ejected_engine_of_the_model_is_the_last_resort(tmp_path: Path) -> None:
    def broken(_: Asked) -> Answered:
        return Answered([b"{}"], status=500)

    tiny, ejected, gone = Engine(["tiny"]), Engine(["foo"], answer=broken), Engine(["foo"], answer=told)
    probe = {"interval_s": 0, "eject_s": 600.0}
    async with serving(
        tmp_path, [tiny, ejected, gone], probe=probe, policy={"name": "round-robin"}
    ) as served:

        async def is_ejected() -> bool:
            await served.chat(model="foo")
            return await served.picker.metric("epp_endpoint_unavailable", endpoint=ejected.address) > 0

        await until(is_ejected)
        ejected.answer = lambda _: Answered([b"{}"])
        await gone.__aexit__()
        assert (await served.chat(model="foo"))[0] == 200


async def test_without_models_any_engine_answers_for_one_that_envoy_does_not_know(tmp_path: Path) -> None:
    known, unknown = Engine(answer=told), Engine(answer=told)
    async with serving(tmp_path, [known, unknown], envoy={"eds_path": ""}) as served:
        served.envoy.check()
        await unknown.__aexit__()
        assert {(await served.chat(f"question {n}"))[0] for n in range(4)} == {200}


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_fail_closed_nobody_answers_while_the_picker_is_dead(tmp_path: Path, variant: Variant) -> None:
    changes = {"fail_closed": True, "picker_keepalive_s": 0.2}
    async with serving(tmp_path, [Engine(["tiny"], answer=told)], variant=variant, envoy=changes) as served:
        assert (await served.chat(model="tiny"))[0] == 200
        await served.picker.kill()

        async def settled() -> bool:  # in full duplex 500 until the health check notices
            return (await served.chat(model="tiny"))[0] != 500

        await until(settled)
        assert {(await served.chat(model="tiny"))[0] for _ in range(4)} == {503}
        await served.picker.start()

        async def back() -> bool:
            return (await served.chat(model="tiny"))[0] == 200

        await until(back)
