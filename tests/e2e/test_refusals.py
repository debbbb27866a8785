"""Engines that have no room, and answer so before the first byte: a real Envoy and picker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNAVAILABLE, PENDING = "epp_endpoint_unavailable", "epp_endpoint_pending_uncached_tokens"
BOTH = pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])


def told(_: Asked) -> Answered:
    return Answered([b'{"choices": [{"message": {"content": "yes"}}], "usage": {"completion_tokens": 1}}'])


def refusing(status: int, **headers: str) -> Callable[[Asked], Answered]:
    return lambda _: Answered(
        [b'{"error": "full"}'],
        headers={name.replace("_", "-"): each for name, each in headers.items()},
        status=status,
    )


def serving(folder: Path, engines: list[Engine], **options: Any) -> EngineServing:
    """In turn, and nothing but requests tells the picker of engines."""
    quiet = {"probe": {"interval_s": 0}, "scrape": {"interval_s": 0}, "policy": {"name": "round-robin"}}
    return EngineServing(folder, engines, **{**quiet, **options})


async def asked(served: EngineServing, text: str, **fields: Any) -> tuple[int, str, str]:
    """Status, ``Retry-After`` and body that the client sees."""
    async with served.http.post(served.url + CHAT, json=chat_body(text, **fields)) as answer:
        return answer.status, answer.headers.get("retry-after", ""), await answer.text()


@pytest.mark.parametrize(
    ("variant", "status", "models"),
    [
        (Variant.STANDALONE, 429, []),
        (Variant.STANDALONE, 503, ["m"]),
        (Variant.FULL_DUPLEX, 529, []),
        (Variant.FULL_DUPLEX, 429, ["m"]),
    ],
)
async def test_a_refusal_goes_to_an_engine_that_has_room_and_not_to_the_client(
    tmp_path: Path, variant: Variant, status: int, models: list[str]
) -> None:
    full, idle = Engine(models, answer=refusing(status)), Engine(models, answer=told)
    async with serving(tmp_path, [full, idle], variant=variant) as served:
        seen = [await asked(served, f"{n} " * 40_000, model="m") for n in range(8)]
        assert {answer[0] for answer in seen} == {200}
        assert full.asked
        assert len(idle.asked) == 8
        assert {len(each.body) for each in full.asked} <= {len(each.body) for each in idle.asked}


@BOTH
async def test_a_refusing_engine_is_left_alone_for_as_long_as_it_asks(
    tmp_path: Path, variant: Variant
) -> None:
    full, idle = Engine(answer=refusing(429, retry_after="60")), Engine(answer=told)
    async with serving(tmp_path, [full, idle], variant=variant) as served:
        assert [(await asked(served, f"{n}"))[0] for n in range(2)] == [200, 200]
        await served.picker.until_metric(
            UNAVAILABLE, lambda value: value > 0, endpoint=full.address, reason="retry-after"
        )
        assert {(await asked(served, f"later {n}"))[0] for n in range(6)} == {200}
        assert len(full.asked) == 1


@BOTH
async def test_the_last_refusal_reaches_the_client_as_the_engine_said_it(
    tmp_path: Path, variant: Variant
) -> None:
    engines = [Engine(["m"], answer=refusing(429, retry_after=f"{60 + number}")) for number in range(3)]
    async with serving(tmp_path, [*engines, Engine(["other"], answer=told)], variant=variant) as served:
        status, after, body = await asked(served, "hello", model="m")
        assert (status, body) == (429, '{"error": "full"}')
        assert after in {"60", "61", "62"}
        assert [len(engine.asked) for engine in engines] == [1, 1, 1]


async def test_while_a_retry_is_answered_its_engine_has_the_request(tmp_path: Path) -> None:
    going = asyncio.Event()

    class Slow(Engine):
        async def heard(self, request: Any) -> Asked:
            noted = await super().heard(request)
            await going.wait()
            return noted

    full, idle = Engine(answer=refusing(429)), Slow(answer=told)
    async with serving(tmp_path, [full, idle]) as served:
        request = asyncio.ensure_future(asked(served, "hello"))
        await served.picker.until_metric(PENDING, lambda value: value > 0, endpoint=idle.address)
        assert not await served.picker.metric(PENDING, endpoint=full.address)
        going.set()
        assert (await request)[0] == 200
