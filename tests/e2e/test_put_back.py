"""Requests that an engine refuses, behind a picker with a queue and a real Envoy: they wait again, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from epp.extproc.messages import DECISION_HEADER
from tests.e2e.test_refusals import refusing, told
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiohttp import ClientResponse

WAITED, OUTCOMES = "epp_queue_seconds_count", "epp_outcomes_total"


def once(refused: Callable[[Asked], Answered]) -> Callable[[Asked], Answered]:
    """Refuse the first request, and answer all others."""
    answers = [told, refused]

    def answer(asked: Asked) -> Answered:
        return (answers.pop() if len(answers) > 1 else told)(asked)

    return answer


def queueing(folder: Path, engines: list[Engine], **options: Any) -> EngineServing:
    """Nothing but requests tells the picker of engines."""
    quiet = {"probe": {"interval_s": 0}, "scrape": {"interval_s": 0}}
    queue = {"queue": {"enabled": True, "ttl_s": 60.0}, "envoy": {"queue_wait_s": 60.0}}
    return EngineServing(folder, engines, **{**quiet, **queue, **options})


async def asked(served: EngineServing, text: str = "hello", **headers: str) -> ClientResponse:
    async with served.http.post(
        served.url + CHAT, json=chat_body(text, model="m"), headers=headers
    ) as answer:
        await answer.read()
        return answer


@pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.ORIGINAL_DST])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_request_refused_by_the_only_engine_waits_until_that_may_be_asked_again(
    tmp_path: Path, variant: Variant, status: int
) -> None:
    engine = Engine({"m": "own"}, answer=once(refusing(status, retry_after="1")))
    async with queueing(tmp_path, [engine], variant=variant) as served:
        answer = await asked(served)
        assert answer.status == 200
        first, second = engine.asked
        assert (second.path, second.body, second.fields["model"]) == (first.path, first.body, "own")
        assert {**first.headers, DECISION_HEADER: ""} == {**second.headers, DECISION_HEADER: ""}
        assert first.headers[DECISION_HEADER] != second.headers[DECISION_HEADER]
        assert answer.headers[DECISION_HEADER] == second.headers[DECISION_HEADER]
        await served.picker.until_metric(OUTCOMES, lambda value: value == 1, cause="completed")
        assert await served.picker.metric(OUTCOMES, cause="put-back", status=f"{status // 100}xx") == 1
        assert await served.picker.metric(WAITED) == 1
        assert not await served.picker.metric("epp_late_reports_total")


async def test_a_fleet_that_refuses_everything_is_not_asked_twice_for_long(tmp_path: Path) -> None:
    engine = Engine(answer=refusing(429, retry_after="0"))
    async with queueing(tmp_path, [engine]) as served:
        answers = [await asked(served, f"{number}") for number in range(40)]
        assert {(answer.status, answer.headers["retry-after"]) for answer in answers} == {(429, "0")}
        assert 40 < len(engine.asked) < 76, "without a budget of retries in vain each is asked twice"


async def test_a_refusal_that_cannot_be_sent_back_reaches_the_client(tmp_path: Path) -> None:
    engine = Engine(answer=refusing(429, retry_after="60"))
    async with queueing(tmp_path, [engine]) as served:
        answer = await asked(served, host="no:port")
        assert (answer.status, await answer.text()) == (429, '{"error": "full"}')
        assert len(engine.asked) == 1
        assert answer.headers["retry-after"] == "60"
        assert not {"location", "x-epp-refused"} & {name.lower() for name in answer.headers}
