"""The last hour of the live page: its figures, its bounds, and what several pickers say together."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from epp.apis.failure import AnswerFailure
from epp.apis.usage import NO_USAGE, Usage
from epp.console.frames import MOST_FLOWS
from epp.console.history import BUCKET_S, FIGURES, MOST_BYTES, WINDOWS, History
from epp.console.pictures import merged, past
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.decision import Outcome, Source
from epp.signals.datastore import Datastore
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint
from tests.kit.clock import ManualClock


def history_of(*addresses: str) -> tuple[History, Datastore]:
    datastore = Datastore(PrefixIndex())
    datastore.apply([Endpoint(address) for address in addresses], 0.0)
    return History(datastore, ManualClock()), datastore


def outcome(where: str = "a:1", **told: Any) -> Outcome:
    known = {"cause": "completed", "status": 200, "ttft_ms": 200.0, "e2e_ms": 1000.0, "usage": NO_USAGE}
    return Outcome(**{"id": "d-1", "endpoint": where, **known, **told})


def frame(history: History, **regions: str) -> dict[str, Any]:
    fleet = [{"id": f"{name}:1", "region": region} for name, region in regions.items()]
    return {"fleet": fleet, "past": history.past}


def figures(frames: list[dict[str, Any]], group: str, name: str, window: int = 0) -> dict[str, Any]:
    found = {row[0]: row[1:] for row in past(frames)["groups"][group]}
    return dict(zip(FIGURES, found[name][window], strict=True))


async def test_requests_count_for_their_replica_its_region_and_their_model() -> None:
    history, _ = history_of("a:1", "b:1")
    for _ in range(30):
        history.ended("chat", 100, 25.0, outcome("a:1"))
    history.ended("chat", 100, 50.0, outcome("b:1", status=503, ttft_ms=float("nan")))
    history.refused("other-model", 503, "pool-empty")
    await history.turn()
    frames = [frame(history, a="eu", b="us")]
    assert figures(frames, "replica", "a:1") == {
        "req/s": 3.0,
        "err/s": 0.0,
        "TTFT p50": pytest.approx(200.0, rel=0.12),
        "TTFT p95": pytest.approx(200.0, rel=0.12),
        "E2E p50": pytest.approx(1000.0, rel=0.12),
        "E2E p95": pytest.approx(1000.0, rel=0.12),
        "queue": 0.0,
        "hits": 0.25,
    }
    assert figures(frames, "region", "us")["err/s"] == 0.1
    assert figures(frames, "region", "us")["TTFT p50"] is None, "the latency of a failure is of no use"
    assert figures(frames, "region", "all")["err/s"] == 0.2
    assert figures(frames, "model", "chat")["req/s"] == 3.1
    assert figures(frames, "model", "other-model")["err/s"] == 0.1


async def test_percentiles_are_those_of_the_latencies() -> None:
    history, _ = history_of("a:1")
    draws = random.Random(1)
    latencies_ms = sorted(draws.lognormvariate(6.0, 1.0) for _ in range(2000))
    for ttft_ms in latencies_ms:
        history.ended("chat", 0, 0.0, outcome(ttft_ms=ttft_ms, e2e_ms=10.0 * ttft_ms))
    await history.turn()
    found = figures([frame(history)], "model", "chat")
    for share, name in ((0.5, "p50"), (0.95, "p95")):
        true_ms = latencies_ms[round(share * len(latencies_ms))]
        assert found[f"TTFT {name}"] == pytest.approx(true_ms, rel=0.1)
        assert found[f"E2E {name}"] == pytest.approx(10.0 * true_ms, rel=0.1)


async def test_histograms_of_pickers_add_up() -> None:
    fast, slow = history_of("a:1")[0], history_of("a:1")[0]
    for _ in range(90):
        fast.ended("chat", 0, 0.0, outcome(ttft_ms=100.0))
    for _ in range(10):
        slow.ended("chat", 0, 0.0, outcome(ttft_ms=5000.0))
    await fast.turn()
    await slow.turn()
    found = figures([frame(fast), frame(slow)], "replica", "a:1")
    assert found["req/s"] == 10.0
    assert found["TTFT p50"] == pytest.approx(100.0, rel=0.12)
    assert found["TTFT p95"] == pytest.approx(5000.0, rel=0.12)


async def test_what_engines_report_as_cached_goes_before_what_was_expected() -> None:
    history, _ = history_of("a:1")
    history.ended("chat", 100, 100.0, outcome(usage=Usage(200, 10, 50)))
    await history.turn()
    assert figures([frame(history)], "model", "chat")["hits"] == 0.25


async def test_a_queue_is_the_mean_of_what_waited_at_the_ends_of_buckets() -> None:
    history, datastore = history_of("a:1")
    for waiting in (4.0, 0.0):
        slot = datastore.slot_of("a:1")
        assert slot is not None
        datastore.engine.update(slot, EngineSample("vllm", 1.0, waiting), 0.0)
        await history.turn()
    history.ended("chat", 0, 0.0, outcome())
    await history.turn()
    assert figures([frame(history), frame(history)], "replica", "a:1")["queue"] == pytest.approx(
        4 / 3, rel=0.01
    )


async def test_a_mistake_of_the_client_is_a_request_and_no_error() -> None:
    history, _ = history_of("a:1")
    history.ended("chat", 0, 0.0, outcome(status=400))
    history.ended("chat", 0, 0.0, outcome(sources={"e2e_ms": Source.PREDICTED}))
    await history.turn()
    found = figures([frame(history)], "model", "chat")
    assert (found["req/s"], found["err/s"], found["E2E p50"]) == (0.2, 0.0, None)
    assert not history.failures


async def test_failures_of_one_kind_are_told_once_with_their_number() -> None:
    history, _ = history_of("a:1")
    failed = AnswerFailure(500, "oom")
    for number in range(3):
        history.ended("chat", 0, 0.0, outcome(id=f"d-{number}", status=200, failure=failed))
    history.ended("chat", 0, 0.0, outcome(cause="upstream-reset"))
    history.refused("chat", 429, "saturated")
    told = {names: (last[0], last[2]) for names, last in history.failures.items()}
    assert told == {
        ("chat", "a:1", "status 500 oom"): ("d-2", 3),
        ("chat", "a:1", "upstream-reset"): ("d-1", 1),
        ("chat", "", "refused with 429: saturated"): ("", 1),
    }


async def test_windows_end_after_five_minutes_and_an_hour() -> None:
    history, _ = history_of("a:1")
    history.ended("chat", 0, 0.0, outcome())
    await history.turn()
    for _ in range(WINDOWS[0]):
        await history.turn()
    frames = [frame(history)]
    assert figures(frames, "model", "chat")["req/s"] == 0.0
    assert figures(frames, "model", "chat", 1)["req/s"] > 0.0
    for _ in range(WINDOWS[1] - WINDOWS[0]):
        await history.turn()
    assert past([frame(history)])["groups"]["model"] == []


async def test_models_beyond_twenty_are_others() -> None:
    history, _ = history_of("a:1")
    for number in range(25):
        history.ended(f"model-{number}", 0, 0.0, outcome())
    await history.turn()
    names = [row[0] for row in past([frame(history)])["groups"]["model"]]
    assert len(names) == 22
    assert "other" in names


async def test_replicas_that_come_and_go_make_the_history_begin_anew() -> None:
    history, _ = history_of("a:1")
    for number in range(2100):
        history.ended("chat", 0, 0.0, outcome(f"pod-{number}:1"))
    await history.turn()
    history.ended("chat", 0, 0.0, outcome("a:1"))
    await history.turn()
    assert [row[0] for row in past([frame(history)])["groups"]["replica"]] == ["a:1"]


async def test_an_hour_of_a_thousand_replicas_and_twenty_models_takes_less_than_20_mb() -> None:
    draws = random.Random(1)
    replicas, models = [f"10.0.{n // 250}.{n % 250}:8000" for n in range(1000)], [f"m-{n}" for n in range(20)]
    asked = [
        outcome(
            draws.choice(replicas),
            ttft_ms=draws.lognormvariate(6.0, 0.8),
            e2e_ms=draws.lognormvariate(8.5, 0.9),
        )
        for _ in range(5000)
    ]
    tracemalloc.start()
    try:
        history, _ = history_of("a:1")
        for _ in range(3):  # buckets of 500 requests/s
            for one in asked:
                prompt_tokens = draws.randrange(8000)
                history.ended(draws.choice(models), prompt_tokens, 0.7 * prompt_tokens, one)
            await history.turn()
        packed = [len(each) for each in history._closed]
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(packed) * WINDOWS[1] < MOST_BYTES, "an hour fits"
    assert grown - sum(packed) + MOST_BYTES < 20_000_000


async def test_more_than_fits_is_a_shorter_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    history, _ = history_of("a:1")
    history.ended("chat", 0, 0.0, outcome())
    await history.turn()
    monkeypatch.setattr("epp.console.history.MOST_BYTES", 3 * len(history._closed[0]))
    for _ in range(5):
        history.ended("chat", 0, 0.0, outcome())
        await history.turn()
    assert history.past["seconds"] == [3 * BUCKET_S, 3 * BUCKET_S]
    assert figures([frame(history)], "model", "chat", 1)["req/s"] == 0.1


def test_the_largest_flows_of_all_pickers_are_shown_and_the_rest_by_priority() -> None:
    small = [(0, f"t{number:02}", "any engine", 1, float(number)) for number in range(12)]
    frames: list[dict[str, Any]] = [
        {"id": "p", "leads": False, "decisions": [], "failures": [], "queue": queue}
        for queue in (
            [(0, "big", "a:1", 3, 2.0), *small],
            [(0, "big", "a:1", 2, 7.0), (1, "t00", "b:1", 2, 1.0)],
        )
    ]
    shown = merged(frames)["queue"]
    assert shown[:2] == [(1, "t00", "b:1", 2, 1.0), (0, "big", "a:1", 5, 7.0)]
    assert shown[2] == (0, "other", "any engine", 4, 11.0)
    assert sum(row[3] for row in shown) == 5 + 2 + 12
    assert len({row[:2] for row in shown}) == MOST_FLOWS + 1


def test_failures_of_one_kind_at_several_pickers_are_one() -> None:
    names = ("chat", "a:1", "status 500")
    frames: list[dict[str, Any]] = [
        {"id": "p", "leads": False, "decisions": [], "queue": [], "failures": [(*names, "d-1", at_s, count)]}
        for at_s, count in ((2.0, 3), (1.0, 4))
    ]
    frames[0]["failures"].append(("chat", "", "refused with 429: saturated", "", 1.5, 1))
    first, second = merged(frames)["failures"]
    assert first == ["chat", "a:1", "status 500", "d-1", 2.0, 7]
    assert second[2] == "refused with 429: saturated", "the newest come first"
