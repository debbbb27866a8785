"""Two llama.cpp servers behind a real Envoy and our picker."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from epp.records.schema import join
from tests.kit.engine_process import APIS, converse, generations, post, precision_and_recall, seen, streaming
from tests.kit.envoy import require_envoy
from tests.kit.llama_cpp import MODEL, TOKENIZER, llama_cpp_process
from tests.kit.picker import Serving
from tests.kit.records import command, ended, recorded
from tests.kit.up import own_ports, running_up
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kit.engine_process import EngineProcess
    from tests.kit.up import Up


@asynccontextmanager
async def serving_two(folder: Path, **config: Any) -> AsyncIterator[tuple[Serving, list[EngineProcess]]]:
    require_envoy()
    tokens = {"models": {MODEL: {"source": str(TOKENIZER)}}, "budget_ms": 5000.0}
    engines = [llama_cpp_process(folder) for _ in range(2)]
    envoy = {"message_timeout_ms": 10_000}
    async with Serving(folder, upstreams=engines, envoy=envoy, tokens=tokens, **config) as serving:
        yield serving, engines


async def test_the_picker_counts_and_believes_what_the_engines_count_and_find(tmp_path: Path) -> None:
    async with serving_two(tmp_path) as (serving, _):
        cases = generations(MODEL, "hello there, 你好 " * 100)
        for path, body in cases.values():
            await post(serving, path, body)
        await converse(serving, MODEL, conversations=6, turns=4)
        await until(lambda: ended(tmp_path / "records") == len(cases) + 24)
        assert command("records", "verify", tmp_path / "records") == 0
    requests = seen(tmp_path / "records")
    assert {one.api for one in requests} == APIS
    # A stream of messages whose first token ends within a character has no message_start.
    wrong = [one.engine_tokens for one in requests if one.prompt_tokens != one.engine_tokens]
    assert wrong in ([], [None])
    precision, recall = precision_and_recall(requests[len(cases) :])
    assert min(precision, recall) >= 0.95  # answers are random bytes


async def test_two_engines_answer_through_epp_up_alone(tmp_path: Path) -> None:
    one, two = (llama_cpp_process(tmp_path) for _ in range(2))
    async with (
        one,
        running_up(tmp_path, f"http://{one.address}", f"http://{two.address}", *own_ports()) as up,
    ):
        assert (await up.ask(MODEL))[0] == 200
        async with two:
            await until(lambda: f"{two.address} is llama.cpp and serves {MODEL}" in up.log())
            await one.kill()
            await until_answered(up)


async def until_answered(up: Up) -> None:
    """Ask until an answer comes: an engine that has died is ejected."""

    async def answered() -> bool:
        return (await up.ask(MODEL))[0] == 200

    await until(answered)


async def test_the_picker_reads_the_load_that_engines_tell(tmp_path: Path) -> None:
    async with serving_two(tmp_path) as (serving, _), streaming(serving, MODEL, clients=9, tokens=2000):
        await serving.picker.until_metric("llm_d_epp_average_running_requests", lambda value: value == 2)
        await serving.picker.until_metric("llm_d_epp_average_queue_size", lambda value: value > 1)


async def test_a_killed_engine_cuts_its_own_streams_alone_and_comes_back_empty(tmp_path: Path) -> None:
    least = {"policy": {"name": "least-request"}}
    async with serving_two(tmp_path, **least) as (serving, (dying, _)):
        # It tells no start time: a restart shows by counters that go back, so there must be something counted.
        body = {"prompt": "hello", "n_predict": 2}
        async with serving.http.post(f"http://{dying.address}/completion", json=body) as answer:
            assert answer.status == 200
        async with streaming(serving, MODEL, clients=4, tokens=2000) as ends:
            await serving.picker.until_metric("llm_d_epp_average_running_requests", lambda value: value == 2)
            # It loses what it has read and not begun to answer.
            await until(lambda: len(ends.open) == 4)
            await dying.kill()
            before = ends.total()
            await until(lambda: ends.total() > before + 8)
        assert set(ends) == {"whole", "cut"}
        records = list(join(recorded(tmp_path / "records")))
        ended_by = {
            one.outcome["served"] or one.outcome["endpoint"]
            for one in records
            if one.outcome and one.outcome["cause"] not in ("completed", "retried-elsewhere")
        }
        assert ended_by == {dying.address}
        await dying.__aenter__()
        await serving.picker.until_metric(
            "epp_endpoint_events_total", lambda value: value == 1, endpoint=dying.address, event="restarted"
        )
