"""Replicas that answer 429 with Retry-After, behind a real Envoy that tells the picker in either way."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from epp.envoy.settings import Variant
from epp.lab.sim.fault import Fault
from tests.e2e.test_faults import under_load, until_seen
from tests.kit.picker import Serving
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

LEFT_ALONE = "epp_endpoint_unavailable"


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
async def test_while_one_replica_asks_for_peace_the_others_serve(tmp_path: Path, variant: Variant) -> None:
    async with Serving(tmp_path, variant=variant) as serving:
        victim = serving.replicas[0]
        stop, tasks, seen = await under_load(serving, clients=8)
        await until_seen(seen, 50)
        victim.set_fault(Fault(error_rate=1.0, error_status=429, error_retry_after_s=60))
        await serving.picker.until_metric(
            LEFT_ALONE, lambda value: value > 0, endpoint=victim.address, reason="retry-after"
        )
        # Those that were on their way there when its first refusal was known.
        await until_seen(seen, 2 * len(tasks))
        failed = seen[429]
        assert failed > 0
        await until_seen(seen, 300)
        stop.set()
        await asyncio.gather(*tasks)
        assert seen[429] == failed, "none fails after the first few"
        assert set(seen) == {200, 429}


async def test_a_replica_that_goes_on_refusing_fails_one_request_a_pause(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        victim = serving.replicas[0]
        victim.set_fault(Fault(error_rate=1.0, error_status=429, error_retry_after_s=2))
        stop, tasks, seen = await under_load(serving, clients=8)
        await serving.picker.until_metric(
            LEFT_ALONE, lambda value: value > 0, endpoint=victim.address, reason="retry-after"
        )
        await until_seen(seen, 2 * len(tasks))
        first, before = seen[429], victim.requests
        await until(lambda: victim.requests >= before + 2)  # two pauses
        assert seen[429] - first <= 2
        victim.set_fault(Fault())
        await until(lambda: victim.requests >= before + 50)
        assert await serving.picker.metric(LEFT_ALONE, endpoint=victim.address, reason="retry-after") == 0
        stop.set()
        await asyncio.gather(*tasks)
        assert seen[429] - first <= 3, "back for good after one good answer"


async def test_where_all_refuse_the_client_gets_the_refusal(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        for replica in serving.replicas:
            replica.set_fault(Fault(error_rate=1.0, error_status=503, error_retry_after_s=7))
        seen = Counter[tuple[int, str | None]]()
        for _ in range(6):
            async with serving.http.post(
                serving.url + "/v1/chat/completions",
                json={"model": "sim-model", "messages": [{"role": "user", "content": "hi"}]},
            ) as answer:
                seen[answer.status, answer.headers.get("retry-after")] += 1
        assert seen == {(503, "7"): 6}
        assert sum(replica.requests for replica in serving.replicas) == 6, "Envoy repeats none of them"
