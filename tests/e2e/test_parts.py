"""Prefill and decode apart, behind a real Envoy: what engines are told, and whatever dies, no request fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.e2e.test_refusals import refusing
from tests.kit.sidecar import ENCODERS, PREFILLER, Decoder, PartedServing, Worker, decoded, prefilled
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.kit.engines import Engine

#: A prompt that takes over a second to prefill, by what is assumed of engines.
LONG = "word " * 20_000
QUIET: dict[str, Any] = {"scrape": {"interval_s": 0}, "probe": {"interval_s": 0}}


def fleet(**fields: Any) -> tuple[list[Worker], list[Decoder]]:
    prefillers = [Worker(role="prefill", answer=prefilled, **fields) for _ in range(2)]
    return prefillers, [Decoder(answer=decoded) for _ in range(2)]


async def test_engines_are_told_of_prefill_workers_and_nothing_of_what_clients_say_of_them(
    tmp_path: Path,
) -> None:
    prefillers, decoders = fleet()
    async with PartedServing(tmp_path, [*prefillers, *decoders], **QUIET) as served:
        forged = {PREFILLER: "127.0.0.1:1", ENCODERS: "127.0.0.1:1", "x-data-parallel-rank": "3"}
        assert await served.turns(LONG, headers=forged) == {200}
    local = [asked for decoder in decoders for asked in decoder.local]
    apart = [asked for asked in local if "kv_transfer_params" in asked.fields]
    assert len(local) == 8
    eds = (tmp_path / "eds.json").read_text()
    known = {int(port) for port in re.findall(r'"port_value": ?(\d+)', eds)}
    assert known == {int(decoder.address.partition(":")[2]) for decoder in decoders}
    assert len(apart) == sum(len(worker.asked) for worker in prefillers) >= 2
    told = {asked.headers.get(PREFILLER) for asked in local}
    assert told <= {None, *(worker.address for worker in prefillers)}
    assert not any(ENCODERS in asked.headers or "x-data-parallel-rank" in asked.headers for asked in local)


def killed(when: str) -> tuple[list[Worker], list[Decoder], Callable[[], Awaitable[None]] | None]:
    """A fleet of which one dies at a step."""
    prefillers, decoders = fleet()

    async def die(worker: Worker) -> None:
        if not worker.dead:
            await worker.die()

    if when == "prefill":
        prefillers[0].before = die
    elif when == "decode":
        decoders[0].before = die
    return (
        prefillers,
        decoders,
        {
            "before the prefill": prefillers[0].die,
            "before the decode": decoders[0].die,
        }.get(when),
    )


@pytest.mark.parametrize(
    ("when", "variant", "fallbacks"),
    [
        ("before the prefill", Variant.STANDALONE, 2),
        ("prefill", Variant.STANDALONE, 2),
        ("before the decode", Variant.STANDALONE, 2),
        ("decode", Variant.STANDALONE, 2),
        ("prefill", Variant.ORIGINAL_DST, 0),
    ],
)
async def test_a_worker_that_dies_costs_no_request(
    tmp_path: Path, when: str, variant: Variant, fallbacks: int
) -> None:
    prefillers, decoders, first = killed(when)
    engines: list[Engine] = [*prefillers, *decoders]
    async with PartedServing(
        tmp_path, engines, variant=variant, policy={"fallbacks": fallbacks}, **QUIET
    ) as served:
        if first is not None:
            await first()
        for _ in range(3):
            assert await served.turns(LONG) == {200}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_prefill_worker_that_refuses_costs_no_request_and_is_left_alone(
    tmp_path: Path, status: int
) -> None:
    prefillers, decoders = fleet()
    prefillers[0].answer = refusing(status)
    async with PartedServing(tmp_path, [*prefillers, *decoders], **QUIET) as served:
        assert await served.turns(LONG) == {200}
        before = len(prefillers[0].asked)
        assert await served.turns(LONG) == {200}
        assert before > 0
        assert len(prefillers[0].asked) == before
        await served.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)


async def test_media_are_encoded_apart_and_an_encoder_that_dies_costs_no_request(tmp_path: Path) -> None:
    encoder, decoder = Worker(role="encode"), Decoder(answer=decoded)
    picture: Any = [{"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}]
    decoder.open.set()
    async with PartedServing(tmp_path, [encoder, decoder], **QUIET) as served:
        assert (await served.chat())[0] == 200
        assert not encoder.asked, "there is nothing to encode"
        assert (await served.chat(picture))[0] == 200
        assert decoder.asked[-1].headers[ENCODERS] == encoder.address
        assert len(encoder.asked) == 1
        await encoder.die()
        assert (await served.chat(picture))[0] == 200
        assert ENCODERS not in decoder.asked[-1].headers


async def test_engines_tell_their_roles_themselves(tmp_path: Path) -> None:
    page = 'sglang:num_running_reqs{engine_type="%s"} 0\n'
    prefiller = Worker(answer=prefilled, metrics=page % "prefill")
    decoder = Decoder(answer=decoded, metrics=page % "decode", role="")
    decoder.open.set()
    async with PartedServing(tmp_path, [prefiller, decoder], scrape={"interval_s": 0.1}) as served:

        async def apart() -> bool:
            assert (await served.chat())[0] == 200
            return PREFILLER in decoder.asked[-1].headers if decoder.asked else False

        await until(apart)
