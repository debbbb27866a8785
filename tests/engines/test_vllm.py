"""Two real vLLM replicas behind a real Envoy and our picker: ``make test-vllm``. Figures are printed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Self

import pytest
import pytest_asyncio

from epp.config.pool import EndpointSpec
from epp.records.schema import join
from tests.kit.engine_process import (
    APIS,
    converse,
    generations,
    post,
    precision_and_recall,
    seen,
    streaming,
)
from tests.kit.envoy import require_envoy
from tests.kit.picker import Serving
from tests.kit.ports import free_ports
from tests.kit.records import command, ended, recorded
from tests.kit.vllm import BLOCK_TOKENS, MODEL, Vllm, environment, write_adapter, write_model
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.kit.engine_process import Seen

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
ADAPTER = "tiny-lora"
#: A cache that 30 prompts of a thousand tokens overflow twice.
FEW_BLOCKS = ("--num-gpu-blocks-override", str(16_384 // BLOCK_TOKENS))


@dataclass
class Engines:
    """Replicas that run, and how to start others."""

    installed: Path
    folder: Path
    pair: list[Vllm] = field(default_factory=list)

    def make(self, port: int, *flags: str) -> Vllm:
        return Vllm(self.installed, self.folder / "model", port, self.folder, flags)


@dataclass
class Started:
    """An engine that runs already, for `Serving`."""

    address: str

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class VllmServing(Serving):
    """Picker and Envoy before engines that run; ``publishers`` are the addresses of events and replay, by engine."""

    def __init__(
        self,
        folder: Path,
        *engines: Vllm,
        publishers: Mapping[str, tuple[str, str]] | None = None,
        **config: Any,
    ) -> None:
        self._publishers = publishers or {}
        config = {"tokens": {"budget_ms": 5000.0}, **config}
        started = [Started(engine.address) for engine in engines]
        super().__init__(folder, upstreams=started, envoy={"message_timeout_ms": 10_000}, **config)

    def specs(self) -> list[EndpointSpec]:
        return [
            EndpointSpec(
                address=spec.address,
                models=[MODEL],
                adapters=[ADAPTER],
                kv_events=events,
                kv_replay=replay,
            )
            for spec in super().specs()
            for events, replay in [self._publishers.get(spec.address, ("", ""))]
        ]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.picker.until_metric(
            "epp_model_tokens_counted", lambda value: value == 1, model_name=MODEL, by="tokenizer"
        )
        return self

    async def requests(self, count: int) -> list[Seen]:
        """The requests so far, so many, all priced and drawn the same again."""
        await until(lambda: ended(self.folder / "records") == count)
        assert command("records", "verify", self.folder / "records") == 0
        return seen(self.folder / "records")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    made = Engines(environment(), tmp_path_factory.mktemp("vllm"))
    require_envoy()
    write_model(made.folder / "model")
    adapter = f"{ADAPTER}={write_adapter(made.folder / 'adapter')}"
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", adapter)
    made.pair = [made.make(free_ports(), *lora) for _ in range(2)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(engine) for engine in made.pair))
        yield made


async def test_tokens_are_counted_as_the_engine_counts_them(engines: Engines, tmp_path: Path) -> None:
    async with VllmServing(tmp_path, *engines.pair) as serving:
        texts = ["hi", "hello there, 你好 " * 100, "def f(x):\n\treturn {x: [1, 2]}  # 🚀\n" * 200]
        cases = [case for text in texts for case in generations(MODEL, text).values()]
        cases += [case for text in texts for case in generations(ADAPTER, text).values()]
        for path, body in cases:
            await post(serving, path, body)
        requests = await serving.requests(len(cases))
    print(
        f"\ncounted alike: {sum(one.prompt_tokens == one.engine_tokens for one in requests)} of {len(cases)}"
    )
    assert {one.api for one in requests} == APIS
    assert not [one for one in requests if one.prompt_tokens != one.engine_tokens]


async def test_without_pressure_hits_are_those_believed(engines: Engines, tmp_path: Path) -> None:
    async with VllmServing(tmp_path, *engines.pair) as serving:
        await converse(serving, MODEL, conversations=12, turns=4, system="Be kind, and brief. " * 60)
        await converse(serving, ADAPTER, conversations=4, turns=2)
        requests = await serving.requests(56)
    print_hits("without pressure", requests)
    assert not [one for one in requests if one.prompt_tokens != one.engine_tokens]
    assert not [one for one in requests if one.believed_tokens % BLOCK_TOKENS]
    assert min(precision_and_recall(requests)) >= 0.98


async def test_embeddings_are_counted_and_cached(engines: Engines, tmp_path: Path) -> None:
    async with (
        engines.make(free_ports(), "--runner", "pooling") as engine,
        VllmServing(tmp_path, engine) as serving,
    ):
        texts = [f"{number} of the same text. " * 100 for number in range(3)]
        for body in (*texts, *texts, texts):
            await post(serving, "/v1/embeddings", {"model": MODEL, "input": body})
        requests = await serving.requests(7)
    print_hits("embeddings", requests)
    assert not [one for one in requests if one.prompt_tokens != one.engine_tokens]


async def test_an_engine_that_dies_comes_back_empty_and_evicts(engines: Engines, tmp_path: Path) -> None:
    dying = engines.pair[0]
    least: dict[str, Any] = {"policy": {"name": "least-request"}}
    small = engines.make(int(dying.address.rpartition(":")[2]), *FEW_BLOCKS)
    (tmp_path / "kill").mkdir()
    async with AsyncExitStack() as stack:
        async with VllmServing(tmp_path / "kill", *engines.pair, **least) as serving:
            async with streaming(serving, MODEL, clients=8, tokens=200) as ends:
                await serving.picker.until_metric(
                    "llm_d_epp_average_running_requests", lambda value: value >= 3
                )
                await dying.kill()
                before = ends.total()
                await until(lambda: ends.total() >= before + 24, 120)
            records = list(join(recorded(tmp_path / "kill" / "records")))
            cut = [one.outcome for one in records if one.outcome and one.outcome["cause"] == "upstream-reset"]
            print(f"\nkilled under load: {dict(ends)}; {[one['cause'] for one in cut]}")
            await stack.enter_async_context(small)
            await serving.picker.until_metric(
                "epp_endpoint_events_total",
                lambda value: value == 1,
                endpoint=dying.address,
                event="restarted",
            )
            assert command("records", "verify", tmp_path / "kill" / "records") == 0
        async with VllmServing(tmp_path, small) as serving:
            random, prompts = Random(0), [f"{number} of thirty prompts. " * 110 for number in range(30)]
            # Each once, then the more often the earlier.
            asked = [*prompts, *random.choices(prompts, [1 / rank for rank in range(1, 31)], k=120)]
            for text in asked:
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
                await post(serving, "/v1/chat/completions", body)
            requests = await serving.requests(len(asked))
        print_hits("under eviction", requests)


def print_hits(what: str, requests: list[Seen]) -> None:
    """Print what was believed and what was true."""
    precision, recall = precision_and_recall(requests)
    prompt, found = (
        sum(one.prompt_tokens for one in requests),
        sum(one.cached_tokens or 0 for one in requests),
    )
    believed = sum(one.believed_tokens for one in requests)
    print(
        f"\n{what}: {len(requests)} requests, {prompt} tokens, believed {believed:.0f}, cached {found},"
        f" precision {precision:.4f}, recall {recall:.4f}"
    )
