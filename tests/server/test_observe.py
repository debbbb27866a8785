"""Which responses are read, and when the leases of the others end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from epp.apis.usage import Usage
from epp.config.load import parse_config
from epp.config.schema import ObserveSection
from epp.extproc.types import Observe
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.request.outcomes import LONGEST, EstimatedReservations
from epp.request.response_sampling import Sampler, section_of, share_of
from epp.schedule.decision import Outcome, Source
from epp.signals.metrics_text import EngineSample
from epp.signals.rates import Rates
from epp.types import Endpoint
from tests.kit.clock import ManualClock
from tests.kit.logs import own_lines
from tests.kit.records import picker_of
from tests.kit.requests import asked, measured
from tests.kit.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.scheduler import Scheduler
    from epp.signals.duration import Duration

IDS = [f"d-{number}" for number in range(4000)]


@pytest.mark.parametrize(
    ("text", "mode", "share"),
    [
        ("", "all", 1.0),
        ("observe: all", "all", 1.0),
        ("observe: none", "none", 0.0),
        ("observe: sample:0.25", "sample:0.25", 0.25),
        ("observe: 'sample:1'", "sample:1", 1.0),
        ("observe: {mode: 'sample:.5', max_chunks_per_s: 10, unobserved: carry}", "sample:.5", 0.5),
    ],
)
def test_the_configuration_has_a_short_form(text: str, mode: str, share: float) -> None:
    section = section_of(parse_config(text, "epp.yaml").observe)
    assert (section.mode, share_of(section.mode)) == (mode, share)


def sampler(mode: str = "all", limit: float = 1000.0, **fields: Any) -> tuple[Sampler, ManualClock]:
    clock = ManualClock()
    section = ObserveSection(mode=mode, max_chunks_per_s=limit, **fields)
    return Sampler(section, clock), clock


@pytest.mark.parametrize(
    ("mode", "low", "high"), [("all", 4000, 4000), ("none", 0, 0), ("sample:0.2", 700, 900)]
)
def test_the_draw_takes_its_share_and_is_keyed(mode: str, low: int, high: int) -> None:
    one, _ = sampler(mode)
    other, _ = sampler(mode)
    read = [one.choose(decision_id) for decision_id in IDS]
    assert low <= read.count(Observe.READ) <= high
    assert read == [other.choose(decision_id) for decision_id in IDS]
    assert set(read) <= {Observe.READ, Observe.END_STREAM_AFTER_PICK}


def seconds(one: Sampler, clock: ManualClock, number: int, rate: Callable[[], float]) -> None:
    for _ in range(number):
        for _ in range(round(rate())):
            one.chunk()
        clock.advance(1.0)
        one.tick()


def test_above_the_limit_the_share_falls_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    one, clock = sampler(limit=1000.0)
    with caplog.at_level(logging.WARNING):
        seconds(one, clock, 30, lambda: 4000 * one.share)
        assert one.share == pytest.approx(0.225)
        (line,) = own_lines(caplog)
        assert "1000 allowed" in line
    metrics = Metrics(TABLE)
    metrics.show("sampler", one)
    assert shown(metrics, "epp_response_sampling_share") == one.share
    read = [one.choose(decision_id) for decision_id in IDS].count(Observe.READ)
    assert 750 < read < 1050


def test_in_full_duplex_the_limit_carries_and_only_the_operator_leaves() -> None:
    one, clock = sampler("sample:0.5", limit=1000.0)
    seconds(one, clock, 30, lambda: 8000 * one.share)
    assert one.share < 0.2
    duplex = [one.choose(decision_id, duplex=True) for decision_id in IDS]
    assert 1000 < duplex.count(Observe.CARRY) < 2000
    assert 1800 < duplex.count(Observe.END_STREAM_AFTER_PICK) < 2200
    others = [one.choose(decision_id) for decision_id in IDS]
    assert Observe.CARRY not in others
    assert [how is Observe.READ for how in others] == [how is Observe.READ for how in duplex]


def test_it_rises_again_when_there_is_room_and_no_further() -> None:
    one, clock = sampler("sample:0.5", limit=1000.0)
    seconds(one, clock, 5, lambda: 10_000)
    low = one.share
    assert low < 0.06
    seconds(one, clock, 12, lambda: 600)
    assert one.share == low, "a step up would fill more than there is room for"
    seconds(one, clock, 200, lambda: 100)
    assert one.share == 0.5


class Told:
    """Outcomes, as far as leases need them."""

    def __init__(self, scheduler: Scheduler, clock: ManualClock) -> None:
        self.on_outcome: dict[str, Callable[[Outcome], None]] = {}
        self.ended: list[str] = []
        self._scheduler, self._clock = scheduler, clock

    def stream_ended(self, decision_id: str, cause: str, *, predicted: bool = False) -> None:
        outcome = self._scheduler.end(decision_id, cause, self._clock.mono_s())
        assert outcome is not None
        assert predicted
        self.ended.append(decision_id)
        self.tell(outcome)

    def tell(self, outcome: Outcome) -> None:
        for listener in self.on_outcome.values():
            listener(outcome)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        with patch.dict("epp.signals.rates.PRIORS", {"steady": Rates(1.0, 0.3, 30.0, 1e-3)}):
            self.scheduler = picker_of("round-robin", pool=[Endpoint("a:1", engine_class="steady")])
        self.scheduler.datastore.assume_rtt("a:1", 100.0)
        self.told = Told(self.scheduler, self.clock)
        self.leases = EstimatedReservations(self.scheduler, self.told, self.clock)  # type: ignore[arg-type]

    def decide(self, *, left: bool = True) -> str:
        prompt = measured(0, 1000, list(range(1, 16)), 64.0)
        ask = asked(model="m", prompt=prompt, max_output_tokens=11, stream=True)
        decision = self.scheduler.decide(ask, self.clock.mono_s(), 0.0)
        self.leases.decided(decision)
        if left:
            self.leases.stream_ended(decision.id)
        return decision.id

    def expected(self) -> Duration:
        """How long the next request is expected to take; it is given back at once."""
        decision_id = self.decide(left=False)
        expected = self.leases._open[decision_id].expected
        outcome = self.scheduler.end(decision_id, "client-gone", self.clock.mono_s())
        assert outcome is not None
        self.told.tell(outcome)
        self.scheduler.datastore.index.forget(0)
        return expected

    def seen(self, requests: int, *, ttft_ms: float, itl_ms: float) -> None:
        """So many requests are read to their end."""
        for _ in range(requests):
            decision_id = self.decide(left=False)
            begun_s = self.clock.mono_s()
            self.scheduler.first_token(decision_id, begun_s + ttft_ms / 1e3, Source.STREAM)
            last_s = begun_s + (ttft_ms + 10 * itl_ms) / 1e3
            self.scheduler.observed(decision_id, usage=Usage(1000, 11, 0), chunks=11, last_chunk_s=last_s)
            outcome = self.scheduler.end(decision_id, "completed", last_s)
            assert outcome is not None
            self.told.tell(outcome)
            self.scheduler.datastore.index.forget(0)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.leases.tick()

    def scrape(self, running: float, waiting: float = 0.0) -> None:
        sample = EngineSample(running=running, waiting=waiting)
        self.scheduler.datastore.engine.update(0, sample, self.clock.mono_s())

    @property
    def ledger(self) -> tuple[float, float]:
        ledger = self.scheduler.datastore.ledger
        return float(ledger.pending_uncached_tokens[0]), float(ledger.running_requests[0])


def test_tokens_go_back_at_the_predicted_first_token_and_the_rest_at_the_end() -> None:
    bench = Bench()
    bench.decide()  # 100 ms, 300 ms of prefill, ten steps of 30 ms
    bench.wait(0.3)
    assert bench.ledger == (1000.0, 1.0)
    bench.wait(0.2)
    assert bench.ledger == (0.0, 1.0)
    bench.wait(0.4)
    assert bench.ledger == (0.0, 0.0)
    assert bench.told.ended == ["id-0"]


def test_an_idle_engine_frees_what_was_sent_long_before_its_scrape() -> None:
    bench = Bench()
    bench.seen(60, ttft_ms=9000.0, itl_ms=400.0)
    old = bench.decide()
    bench.wait(1.0)
    new = bench.decide()
    bench.scrape(0.0)
    bench.wait(0.1)
    assert bench.told.ended == [old], "the newer may still be on its way"
    bench.wait(1.0)
    bench.scrape(0.0)
    bench.wait(0.1)
    assert bench.told.ended == [old, new]


def test_a_busy_engine_bears_a_lease_out_but_not_for_ever() -> None:
    bench = Bench()
    bench.decide()
    bench.scrape(1.0)
    bench.wait(1.5)
    assert bench.ledger == (0.0, 1.0)
    bench.wait(0.7 * LONGEST)
    assert bench.ledger == (0.0, 0.0)


def test_an_end_that_is_told_goes_before_the_prediction() -> None:
    bench = Bench()
    decision_id = bench.decide()
    outcome = bench.scheduler.end(decision_id, "completed", 0.2)
    assert outcome is not None
    bench.told.tell(outcome)
    bench.wait(5.0)
    assert bench.told.ended == []
