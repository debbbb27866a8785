"""What users see when parts fail: a real Envoy, a real picker process, simulated replicas."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from signal import SIGCONT, SIGSTOP, SIGUSR1
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from epp.envoy.settings import Variant
from epp.server.command import STALLED
from tests.kit.hanging import HANGING
from tests.kit.picker import Serving
from tests.kit.replicas import QUICK, SLOW, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

STEADY = replace(QUICK, decode_curve=((1, 5.0),))


async def test_in_full_duplex_a_killed_picker_cuts_answers_in_flight_only(tmp_path: Path) -> None:
    slow = [quick_config(name, engine_class=SLOW, answer_tokens=4000) for name in "ab"]
    async with Serving(tmp_path, replicas=slow, variant=Variant.FULL_DUPLEX) as serving:

        async def stream(max_tokens: int = 4) -> bool:
            try:
                return await serving.streamed("hi", max_tokens)
            except aiohttp.ClientError:
                return False

        in_flight = [asyncio.ensure_future(stream(4000)) for _ in range(10)]
        await serving.picker.until_metric("epp_requests_in_flight", lambda value: value == 10)
        await serving.picker.kill()
        assert not any(await asyncio.gather(*in_flight)), (
            "these pass through the picker: they cannot survive it"
        )
        await until(stream)
        assert await stream()


async def test_answers_that_do_not_pass_the_picker_outlive_it(tmp_path: Path) -> None:
    slow = [quick_config("a", engine_class=STEADY, answer_tokens=200)]
    async with (
        Serving(tmp_path, replicas=slow) as serving,
        serving.answering(max_tokens=100) as answer,
    ):
        await serving.picker.kill()
        assert (await answer.read()).rstrip().endswith(b"data: [DONE]")


async def test_a_client_that_leaves_mid_stream_releases_its_lease(tmp_path: Path) -> None:
    endless = [quick_config("a", engine_class=SLOW, answer_tokens=4000)]
    async with Serving(tmp_path, replicas=endless) as serving:
        address = serving.replicas[0].address
        async with serving.answering(max_tokens=4000) as answer:
            await serving.picker.until_metric(
                "llm_d_epp_inflight_requests", lambda v: v == 1, endpoint_name=address
            )
            answer.close()
        await serving.picker.until_metric(
            "llm_d_epp_inflight_requests", lambda v: v == 0, endpoint_name=address
        )
        assert await serving.picker.metric("epp_requests_in_flight") == 0


async def test_without_hosts_of_its_own_envoy_refuses_what_a_hung_picker_does_not_pick(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"variant": Variant.ORIGINAL_DST, "policy": {"fallbacks": 0}}
    async with Serving(tmp_path, envoy={"message_timeout_ms": 250}, **options) as serving:
        serving.picker.signal(SIGSTOP)
        for status, _ in await asyncio.gather(*(serving.chat(f"hung {n}") for n in range(10))):
            assert status == 503
        serving.picker.signal(SIGCONT)

        async def awake() -> bool:
            return (await serving.chat("awake"))[0] == 200

        await until(awake)


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_requests_that_wait_on_a_hung_picker_wait_no_longer_than_it_lives(
    tmp_path: Path, variant: Variant
) -> None:
    # As gateways have it: in full duplex nothing but the connection's end tells Envoy that the picker hangs.
    envoy = {"message_timeout_ms": 250, "picker_keepalive_s": 3600.0}
    options: dict[str, Any] = {"variant": variant, "envoy": envoy, "program": HANGING}
    async with Serving(tmp_path, **options) as serving:
        serving.picker.signal(SIGUSR1)
        await until(lambda: "it hangs" in serving.picker.log())
        wanted = 503 if variant is Variant.FULL_DUPLEX else 200
        for status, _ in await asyncio.gather(*(serving.chat(f"hung {n}") for n in range(10))):
            assert status == wanted
        assert await serving.picker.ended() == STALLED
        await serving.picker.start()

        async def served() -> bool:
            return (await serving.chat("after"))[0] == 200

        await until(served)
