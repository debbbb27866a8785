"""Requests that wait in a picker without a socket: what it asks the proxy for, and what it counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from epp.extproc.types import Destination, HttpRequest
from epp.request.queueing import FAIRNESS_HEADER
from epp.schedule.waiting import Wait, in_time
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.clock import ManualClock
from tests.kit.replicas import metric
from tests.kit.shown import shown

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from pathlib import Path

ENGINE = "10.0.0.1:8000"
PROCESSING, SCHEDULING = (
    "llm_d_epp_request_processing_duration_seconds",
    "llm_d_epp_scheduler_e2e_duration_seconds",
)


@dataclass
class Waiting:
    """A picker with a queue, before one engine that has long prompts to read."""

    folder: Path
    queue: dict[str, Any] = field(default_factory=dict)
    models: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.app = app_of(self.folder, self.clock, queue={"enabled": True, **self.queue})
        self.scheduler = self.app.scheduler
        self.scheduler.set_pool([Endpoint(ENGINE, models=self.models)], self.clock.mono_s())
        self.scheduler.datastore.ledger.reserve("long", 0, 200_000, 200_000, self.clock.mono_s(), sequences=4)

    def ask(self, *, full_duplex: bool = False, headers: Mapping[str, str] = MappingProxyType({})) -> Any:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = HttpRequest("POST", "/v1/chat/completions", headers, body, full_duplex=full_duplex)
        return self.app.director.direct(request, since_s=self.clock.mono_s())

    async def total(self, name: str) -> tuple[float, float]:
        """How often and how long, by a histogram."""
        text = (await self.app.metrics.page()).decode()
        return metric(text, f"{name}_count"), metric(text, f"{name}_sum")


async def test_what_a_request_waits_is_no_time_of_the_pickers(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    asked = asyncio.ensure_future(in_time(waiting.ask()))
    await asyncio.sleep(0)
    waiting.clock.advance(5.0)
    assert shown(waiting.app.metrics, "epp_queue_open_engines") == 0
    waiting.scheduler.datastore.ledger.end("long")
    assert shown(waiting.app.metrics, "epp_queue_open_engines") == 1
    assert isinstance(await asked, Destination)
    assert await waiting.total("epp_queue_seconds") == (1, 5.0)
    assert await waiting.total(PROCESSING) == (1, 0.0)
    assert await waiting.total(SCHEDULING) == (1, 0.0)


@pytest.mark.parametrize(("asks", "waits"), [({}, False), ({"full_duplex": True}, True)])
async def test_in_full_duplex_requests_wait_only_where_the_configuration_asks_for_it(
    tmp_path: Path, asks: dict[str, Any], waits: bool
) -> None:
    answer = first_step(Waiting(tmp_path, asks).ask(full_duplex=True))
    assert isinstance(answer, Wait if waits else Destination)


async def test_the_first_wait_asks_for_the_time_of_those_that_may_follow(tmp_path: Path) -> None:
    """A proxy grants more time once."""
    waiting = Waiting(tmp_path, {"ttl_s": 20.0}, models=frozenset({"another"}))
    waiting.app.director.model_lists.engines[ENGINE] = asyncio.Event().wait
    for full_duplex, longest_s in ((False, 3.0 + 20.0), (True, 3.0)):
        wait = first_step(waiting.ask(full_duplex=full_duplex))
        assert isinstance(wait, Wait)
        assert wait.longest_s == longest_s


async def test_where_three_callers_give_up_turns_of_agents_they_are_held_no_longer_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where Envoy grants less time than the picker asks for: it ends the stream."""
    caplog.set_level("INFO")
    clock, text = ManualClock(100.0), "a word or two " * 10_000
    app = app_of(tmp_path, clock, queue={"enabled": True, "programs": {"enabled": True}})
    assert "are held for up to 540 s, but not in full duplex: clients, " in caplog.text
    app.scheduler.set_pool([Endpoint(ENGINE, kv_capacity_tokens=50_000)], clock.mono_s())
    assert app._queueing is not None
    gate = app._queueing.binding.programs
    assert gate is not None

    def ask(session: str) -> Any:
        gate.guard.count(1_000.0, clock.mono_s())  # contexts are computed all the time
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": session + text}]}).encode()
        request = HttpRequest("POST", "/v1/chat/completions", {"x-session-id": session}, body)
        return app.director.direct(request, since_s=clock.mono_s())

    assert isinstance(first_step(ask("first")), Destination)
    for session in "abc":
        wait = ask(session).send(None)
        clock.advance(60.0)
        wait.cancel()
    assert "are not held for 600 s: callers gave up, the last one after 60.0 s" in caplog.text
    assert isinstance(first_step(ask("d")), Destination)
    assert 'epp_program_turns_total{how="left"} 3.0' in (await app.metrics.page()).decode()


def test_where_turns_of_agents_could_not_wait_until_they_age_a_start_says_that_none_is_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app_of(tmp_path, queue={"enabled": True, "programs": {"enabled": True, "longest_hold_s": 60.0}})
    assert "turns of agents are not held: queue.programs.longest_hold_s is not above age_s" in caplog.text


def first_step(steps: Coroutine[Wait[Any], Any, Any]) -> object:
    """What a request waits for, or its answer."""
    try:
        wait = steps.send(None)
    except StopIteration as ended:
        return ended.value
    wait.cancel()
    steps.close()
    return wait


async def test_what_programs_wait_and_were_served_is_told_as_in_llm_d(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, {"fairness": "program-aware", "patience": 1.0})
    programs = ("a", "b")
    asked = [
        asyncio.ensure_future(in_time(waiting.ask(headers={FAIRNESS_HEADER: name}))) for name in programs
    ]
    await asyncio.sleep(0)
    waiting.clock.advance(5.0)
    waiting.scheduler.datastore.ledger.end("long")
    assert all(isinstance(each, Destination) for each in await asyncio.gather(*asked))
    text = (await waiting.app.metrics.page()).decode()
    enqueued = "llm_d_epp_flow_control_request_enqueue_duration_seconds_count"
    for name in programs:
        assert metric(text, enqueued, {"fairness_id": name, "outcome": "NotYetFinalized"}) == 1
        waited = metric(text, "llm_d_epp_program_aware_avg_wait_time_milliseconds", {"program_id": name})
        assert waited == 5000.0
        assert metric(text, "llm_d_epp_program_aware_attained_service_tokens", {"program_id": name}) > 0
    assert metric(text, "llm_d_epp_program_aware_jains_fairness_index") == 1.0
