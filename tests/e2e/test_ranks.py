"""Data-parallel ranks behind one port, behind a real Envoy: each is chosen, measured and charged for itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from operator import eq
from typing import TYPE_CHECKING

from tests.kit.sidecar import PartedServing, Worker, decoded

if TYPE_CHECKING:
    from pathlib import Path

RANK = "x-data-parallel-rank"
#: vLLM's page of two ranks, of which the first is full.
PAGE = """\
vllm:num_requests_running{engine="0",model_name="m"} 200
vllm:num_requests_waiting{engine="0",model_name="m"} 90
vllm:num_requests_running{engine="1",model_name="m"} 0
vllm:num_requests_waiting{engine="1",model_name="m"} 0
"""


async def test_a_rank_is_chosen_by_its_own_metrics_and_named_to_the_engine(tmp_path: Path) -> None:
    engine = Worker(answer=decoded, ranks=2, metrics=PAGE)
    async with PartedServing(tmp_path, [engine], policy={"name": "llm-d"}) as served:
        picker, full, free = served.picker, f"{engine.address}@0", f"{engine.address}@1"
        for name in (full, free):
            await picker.until_metric(
                "epp_endpoint_engine_age_seconds", lambda value: 0 <= value < 60, endpoint=name
            )
        for turn in range(4):
            assert (await served.chat(f"{turn}", headers={RANK: "0"}))[0] == 200
        await picker.until_metric("epp_outcomes_total", lambda value: value == 4, endpoint=free)
        assert await picker.metric("epp_outcomes_total", endpoint=full) == 0
        assert await picker.metric("epp_picks_not_honoured_total") == 0
    assert [asked.headers[RANK] for asked in engine.asked] == ["1"] * 4


async def test_ranks_share_prompts_and_each_gets_again_what_it_holds(tmp_path: Path) -> None:
    texts = [f"{turn} " + "word " * 3_000 for turn in range(6)]
    arrived = asyncio.Event()

    async def wait(_: Worker) -> None:
        if sum(len(engine.asked) for engine in engines) >= len(texts):
            arrived.set()
        await arrived.wait()

    engines = [Worker(answer=decoded, ranks=4, before=wait) for _ in range(2)]
    async with PartedServing(tmp_path, engines, scrape={"interval_s": 0}) as served:
        await asyncio.gather(*(served.chat(text) for text in texts))
        for text in texts:
            assert (await served.chat(text))[0] == 200
    asked = [each for engine in engines for each in engine.asked]
    where = [
        {(each.upstream, each.headers[RANK]) for each in asked if text in each.body.decode()}
        for text in texts
    ]
    assert [len(places) for places in where] == [1] * len(texts)
    assert len(set[tuple[str, str]]().union(*where)) > 2


async def test_a_host_that_dies_costs_no_request_and_another_serves_by_the_same_rank(tmp_path: Path) -> None:
    engines = [Worker(answer=decoded, ranks=2) for _ in range(2)]
    async with PartedServing(
        tmp_path, engines, scrape={"interval_s": 0}, probe={"interval_s": 0}, policy={"fallbacks": 2}
    ) as served:
        await engines[0].die()
        for turn in range(6):
            assert (await served.chat(f"{turn}"))[0] == 200
        ranks = Counter(asked.headers[RANK] for asked in engines[1].asked)
        for rank, number in ranks.items():
            name = f"{engines[1].address}@{rank}"
            await served.picker.until_metric("epp_outcomes_total", partial(eq, number), endpoint=name)
    assert sum(ranks.values()) == 6
