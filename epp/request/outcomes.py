"""One outcome per request, from reports that come apart: stream ends, first tokens, access-log entries.

Owns the requests whose stream has ended and whose report has not come. Envoy's log follows the end of the
stream by its flush interval; a request that no report came for within `REPORT_WAIT_S` is recorded with what
its stream told. Where the end was only predicted, and Envoy reports, the real one may come much later: then
`FORETOLD_WAIT_S`. Reservations never wait for a report: they end with the stream.

A request whose stream ended with its decision has estimated ends: its uncached tokens are released at the
predicted first token, its reservation at the predicted end. Engine metrics correct this both ways: an
endpoint that reports nothing running or waiting frees what was sent to it well before that scrape, and one
that reports at least as many requests as the ledger counts keeps a reservation for longer, up to `LONGEST`
times its prediction. An access log that reports the end goes before all of this.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec.structs import replace

from epp.apis.usage import NO_USAGE
from epp.config.retries import NO_MODEL, REFUSALS
from epp.extproc.types import Cause
from epp.request.access_log import FULL_PAUSE_S, Termination
from epp.schedule.decision import FAILED_ANSWER, Source, usage_sources, with_itl
from epp.signals.engine_metrics import RUNNING, WAITING
from epp.signals.ledger import RUNNING as PROMISED_REQUESTS
from epp.signals.paths import ConnectionTiming
from epp.signals.retry_after import PEER_PAUSE_S, STATUSES, retry_after_s
from epp.signals.retry_budget import RetryBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.apis.usage import Usage
    from epp.clock import Clock
    from epp.feeds.resolve import Resolver
    from epp.metrics.metrics import Metrics
    from epp.records.recorder import FileRecorder
    from epp.request.access_log import Attempt, Report
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.scheduler import Scheduler
    from epp.signals.duration import Duration
    from epp.types import RequestInfo

log = logging.getLogger(__name__)

#: Seconds between two looks at what is due.
TICK_S = 0.1
REPORT_WAIT_S = 2.0
#: Less than a tuner waits for outcomes.
FORETOLD_WAIT_S = 30.0
_REMEMBERED = 4096
#: Ends that do not say what became of the response, because it did not pass the picker, or not to its end.
_BLIND = {cause.value for cause in (Cause.STREAM_END, Cause.CUT_OFF, Cause.CLIENT_GONE, Cause.UNOBSERVED)}
#: Ends of a response that began well, as far as the stream shows it.
_ANSWERED = {Cause.COMPLETED.value, Cause.STREAM_END.value}
#: A client's mistake (4xx) says neither that an endpoint works nor that it fails.
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_SERVED = {Termination.COMPLETED, Termination.RETRIED_ELSEWHERE}
_ENDPOINT_FAILED = {Termination.UPSTREAM_RESET, Termination.UNREACHABLE}
#: A reservation that the engine's metrics bear out lives for at most so many times its predicted length.
LONGEST = 3.0
#: A request that an idle engine can have missed: sent so many seconds before the scrape, and a round trip.
IN_TRANSIT_S = 0.5
#: An endpoint, and whether a request failed there.
_Verdict = tuple[str, bool]
_EMPTY = "an empty answer"
#: How an attempt ends whose request comes back.
_PUT_BACK = "put-back"
#: Of a request that says nothing of anybody, and of one that Envoy has reported.
_NOTHING, _REPORTED = ("", False), ("reported", False)
_T = TypeVar("_T")


class Outcomes:
    """Takes all reports on requests (it is the `Reports` of the receivers) and tells each outcome once.

    Args:
        scheduler: holds the requests in flight.
        metrics: counted into.
        recorder: outcomes go there, if anywhere.
        clock: the time.
        resolver: what Envoy calls an endpoint, back to its name.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        metrics: Metrics,
        recorder: FileRecorder | None,
        clock: Clock,
        resolver: Resolver,
    ) -> None:
        self._scheduler, self._metrics, self._recorder = scheduler, metrics, recorder
        self._clock, self._resolver = clock, resolver
        self._late_reports = metrics.value("epp_late_reports_total")
        self._waiting: dict[str, Outcome] = {}
        self._due: list[tuple[float, str]] = []  # a heap: until when each is waited for, some told since
        self._reporting = False  # whether any report on a request of ours has come
        #: The last that were told, oldest first: what was counted of each, `_REPORTED` after Envoy's report.
        self._finished: dict[str, _Verdict] = {}
        #: What was counted of those that were told without their report, which is late when it comes.
        self._unreported: dict[str, _Verdict] = {}
        #: Endpoints that refused or failed a request, each reported for itself.
        self._attempts: dict[str, set[str]] = {}
        #: Of retries of refusals.
        self.retry_budget = RetryBudget()
        #: Endpoints whose last decision Envoy did not honour.
        self._not_honoured: set[str] = set()
        #: Called with every outcome.
        self.on_outcome: dict[str, Callable[[Outcome], None]] = {}
        #: Called with a request and the endpoint that answered it `NO_MODEL`, which may be retried; by name.
        self.on_no_model: dict[str, Callable[[str, str], None]] = {}

    def first_token(self, decision_id: str, source: Source = Source.FIRST_TOKEN) -> None:
        """Note the first piece of an answer; the end of a short one, or its report, may be here before.

        Where the stream shows answers and Envoy calls as well, the second changes nothing.
        """
        self._scheduler.datastore.retry_after.answered(decision_id)
        known = self._scheduler.first_token(decision_id, self._clock.mono_s(), source)
        if not known and decision_id not in self._waiting and not self._scheduler.has_in_flight(decision_id):
            self.count_late_report(decision_id)

    def stored(self, decision_id: str, response_id: str) -> None:
        """Note the id under which the engine stores the response to a request."""
        self._scheduler.stored(decision_id, response_id, self._clock.mono_s())

    def answered(self, decision_id: str, where: str, status: int, retry_after: str) -> None:
        """Pause an endpoint that has no room, or end its pause.

        Args:
            decision_id: the request.
            where: address of who answered.
            status: HTTP status.
            retry_after: the answer's ``Retry-After``, ``""`` without one, which stands for `FULL_PAUSE_S`.
        """
        pauses = self._scheduler.datastore.retry_after
        if status in STATUSES:
            slot = self._scheduler.datastore.slot_of(where)
            asked_s = retry_after_s(retry_after or FULL_PAUSE_S, self._clock.wall_s())
            if slot is None or asked_s <= 0.0:
                return
            why = f"it answered {status} and asked for {asked_s:,.0f} s"
            if pauses.pause(slot, asked_s, decision_id, self._clock.mono_s(), why):
                log.info("endpoint %s answers %d and is left alone for %.0f s", where, status, asked_s)
        elif 0 < status < _SERVER_ERROR:
            pauses.answered(decision_id)

    def stream_ended(self, decision_id: str, cause: str, *, predicted: bool = False) -> None:
        """End the reservation with its ext_proc stream; the outcome waits for its report.

        ``predicted`` where nobody saw the end, and now is when it was to be expected.
        """
        now_s = self._clock.mono_s()
        blind = cause in _BLIND
        outcome = self._scheduler.end(decision_id, cause, now_s, report_follows=blind)
        if outcome is not None and predicted:
            outcome = replace(outcome, sources={**outcome.sources, "e2e_ms": Source.PREDICTED})
        if outcome is None:
            self.count_late_report(decision_id)
        elif blind:
            wait_s = FORETOLD_WAIT_S if predicted and self._reporting else REPORT_WAIT_S
            self._waiting[decision_id] = outcome
            heapq.heappush(self._due, (now_s + wait_s, decision_id))
        else:
            _remember(self._finished, decision_id, self._judge_stream(outcome))
            self._publish(_as_streamed(outcome))

    def put_back(self, decision_id: str, status: int, retry_after: str) -> RequestInfo | None:
        """End a request that an engine refused and that comes back; return what it was taken for."""
        scheduler, now_s = self._scheduler, self._clock.mono_s()
        request, ended = scheduler.request_of(decision_id), self._waiting.get(decision_id)
        ended = ended or scheduler.end(decision_id, "", now_s, report_follows=True)
        if ended is not None:
            self._waiting[decision_id] = replace(ended, cause=_PUT_BACK, status=status)
            self.answered(decision_id, ended.at_fault, status, retry_after)
            self._settle(decision_id)
        return request

    def attempted(self, attempt: Attempt) -> None:
        """Charge an attempt that was refused or failed to its own endpoint, and move the request to the next.

        An attempt without a decision is the request's last: Envoy's report of the request tells the same.
        """
        decision_id, status, now_s = attempt.decision_id, attempt.status, self._clock.mono_s()
        if not decision_id:
            return
        where = self._endpoint(decision_id, attempt.served)
        tried = self._attempts.get(decision_id)
        if tried is None:
            _remember(self._attempts, decision_id, tried := set())
        elif status in REFUSALS and where not in tried:
            self.retry_budget.in_vain(now_s)
        self.answered(decision_id, where, status, attempt.retry_after)
        failed = status == 0 or status >= _SERVER_ERROR or attempt.unserved
        counted = where in tried or self._finished.get(decision_id) in (_REPORTED, (where, True))
        if failed and not counted:
            # What was not reached is at fault itself.
            charged = next(iter(self._scheduler.workers_of(decision_id).values()), where) if status else where
            self._count(charged, True, f"status {status}" if status else Termination.UNREACHABLE.value, now_s)
        tried.add(where)
        if status == NO_MODEL:
            for listener in self.on_no_model.values():
                listener(decision_id, where)
        following = self._endpoint(decision_id, attempt.following)
        # This answer is retried for bound requests alone, which is not known here.
        if following and status != NO_MODEL and self._scheduler.has_in_flight(decision_id):
            self._scheduler.served(decision_id, following)

    def finished(self, report: Report) -> None:
        """Take Envoy's report of a finished request."""
        if not report.decision_id:
            return  # served without a decision: while the picker was away, or by the fallback
        before = self._finished.get(report.decision_id, _NOTHING)
        if before == _REPORTED:  # a second report of one request
            self._late_reports.value += 1.0
            return
        served = self._endpoint(report.decision_id, report.served)
        if report.decision_id not in self._finished and report.cause not in _ENDPOINT_FAILED:
            # else the stream showed the headers, or Envoy made them
            self.answered(report.decision_id, served, report.status, report.retry_after)
        if report.encoding:
            self._metrics.value("epp_compressed_answers_total").inc()
        if served:
            self._scheduler.served(report.decision_id, served)
        if report.response_id:
            self.stored(report.decision_id, report.response_id)
        # What is refused or comes too late goes into no outcome.
        counted = report.usage != NO_USAGE and self._scheduler.usage(report.decision_id, report.usage)
        if report.connected_anew is not None:
            told = ConnectionTiming(report.connected_anew, report.opened_ms, report.first_byte_ms)
            self._scheduler.connection(report.decision_id, told)
        outcome = self._waiting.pop(report.decision_id, None)
        if outcome is None:
            now_s = self._clock.mono_s()
            outcome = self._scheduler.end(report.decision_id, report.cause.value, now_s, report_follows=True)
        if outcome is not None:
            outcome = self._merged(outcome, report, served, report.usage if counted else NO_USAGE)
        before = self._unreported.get(report.decision_id, before)
        self._judge(report, served, before, outcome)
        if outcome is None:
            if report.decision_id in self._finished:  # the stream told it all, and this report of it is due
                self._finished[report.decision_id] = _REPORTED
            else:
                self._late_reports.value += 1.0
            return
        self._reporting = True
        _remember(self._finished, report.decision_id, _REPORTED)
        self._count_honoured(outcome)
        self._scheduler.settle(outcome)
        self._publish(outcome)

    def count_late_report(self, decision_id: str) -> None:
        """Count what the stream or a first token reports of a request that is not in flight.

        In order where its outcome is new: reports come on connections of their own, and an entry that fills
        Envoy's buffer is written before its stream ends.
        """
        if decision_id not in self._finished:
            self._late_reports.value += 1.0

    def expire(self) -> None:
        """End what outlived its reservation, and stop waiting for reports that do not come."""
        now_s = self._clock.mono_s()
        for outcome in self._scheduler.expire(now_s):
            self._metrics.value("epp_leases_lost_total", outcome.cause).inc()
            self._publish(outcome)
        while self._due and self._due[0][0] <= now_s:
            _, decision_id = heapq.heappop(self._due)
            self._settle(decision_id)

    def close(self) -> None:
        """Tell what still waits."""
        for decision_id in list(self._waiting):
            self._settle(decision_id)

    def _settle(self, decision_id: str) -> None:
        """Finish a request whose report did not come."""
        outcome = self._waiting.pop(decision_id, None)
        if outcome is None:
            return
        counted = self._judge_stream(outcome)
        if counted != _NOTHING:
            _remember(self._unreported, decision_id, counted)
        self._scheduler.settle(outcome)
        self._publish(outcome)

    def _merged(self, outcome: Outcome, report: Report, served: str, reported: Usage) -> Outcome:
        """Merge an outcome with its report, which goes first.

        ``served`` is the endpoint that it names, ``reported`` its usage unless refused.
        """
        facts: dict[str, Any] = {"cause": report.cause.value}
        if report.served:
            facts["served"] = served
            facts["attempts"] = report.attempts or None
        if report.status:
            facts["status"], facts["response_bytes"] = report.status, report.response_bytes
        if report.chunks is not None:
            facts["chunks"] = report.chunks
        times = (("ttft_ms", report.ttft_ms), ("e2e_ms", report.e2e_ms))
        facts |= {name: value_ms for name, value_ms in times if not math.isnan(value_ms)}
        sources = {**outcome.sources, **dict.fromkeys(facts, Source.ENVOY)}
        if reported != NO_USAGE:
            facts["usage"] = reported
            sources |= usage_sources(reported, Source.ENVOY)
        merged = replace(
            outcome,
            **facts,
            streamed=outcome.streamed if report.streamed is None else report.streamed,
            sources=sources,
            unsent_ms=report.unsent_ms,
            usage_refused=outcome.usage_refused or reported != report.usage,
            honoured=report.honoured,
            failure=report.failure or outcome.failure,
            model=report.model or outcome.model,
        )
        # NaN where Envoy saw no first token
        return with_itl(merged, report.e2e_ms - report.ttft_ms, Source.ENVOY)

    def _judge(self, report: Report, served: str, before: _Verdict, outcome: Outcome | None) -> None:
        """Count what the request says of the endpoints that it was tried on, less what was counted before.

        A response that the stream showed is in Envoy's report as well: counted twice, three failures would
        eject an endpoint for five.
        """
        datastore, now_s = self._scheduler.datastore, self._clock.mono_s()
        empty = outcome is not None and outcome.empty
        tried = self._attempts.get(report.decision_id, ())
        for verdict, how in self._verdicts(report, served, empty=empty).items():
            where, failed = verdict
            # What the stream showed to be empty is a good answer to Envoy.
            if verdict not in (before, (before[0], False)) and not (failed and where in tried):
                by_answer = report.cause not in _ENDPOINT_FAILED
                self._count_parts(outcome, where, failed, how) if by_answer else self._count(
                    where, failed, how, now_s
                )
        if report.failure is not None and report.cause is Termination.FAILED_ANSWER:
            self.answered(report.decision_id, served, report.failure.status, FULL_PAUSE_S)
        slot = datastore.slot_of(served)
        if slot is not None and report.connected_anew and not math.isnan(report.connect_ms):
            datastore.rtt.connected(slot, report.connect_ms, now_s)

    def _verdicts(self, report: Report, served: str, *, empty: bool) -> dict[_Verdict, str]:
        """List what a report says of which endpoint, and how it failed, for the log."""
        found: dict[_Verdict, str] = {}
        first = report.picked[0] if report.picked else ""
        chosen = self._endpoint(report.decision_id, first)
        # A relay goes on from an engine that refused as well, and does not say.
        if report.attempts > 1 and first != report.served:
            found[chosen, True] = "went on to another endpoint"
        if self._scheduler.datastore.slot_of(served) is None:
            # A relay that was not reached, or broke off: so is the way to the chosen endpoint.
            if report.attempts == 1 and report.cause in _ENDPOINT_FAILED:
                found[chosen, True] = report.cause.value
        elif report.cause in _ENDPOINT_FAILED:
            found[served, True] = report.cause.value
        elif (report.failure or report).status >= _SERVER_ERROR:
            found[served, True] = _words(report)
        elif report.cause in _SERVED and report.status < _CLIENT_ERROR:
            found[served, empty] = _EMPTY if empty else ""
        return found

    def _endpoint(self, decision_id: str, upstream: str) -> str:
        """Find the endpoint that Envoy calls ``upstream`` in what it tells of a request."""
        told = self._finished.get(decision_id) or self._unreported.get(decision_id) or _NOTHING
        return self._resolver.endpoint_of(upstream, self._scheduler.chosen_for(decision_id) or told[0])

    def _judge_stream(self, outcome: Outcome) -> _Verdict:
        """Count what a response that the stream showed says of its endpoint; what was counted."""
        where, status, verdict = outcome.where, outcome.verdict, _NOTHING
        how = _EMPTY if outcome.empty else _words(outcome)
        if status >= _SERVER_ERROR or outcome.empty:
            verdict = where, True
        elif 0 < status < _CLIENT_ERROR and outcome.cause in _ANSWERED:
            verdict = where, False
        if where not in self._attempts.get(outcome.id, ()):
            self._count_parts(outcome, *verdict, how)
        if outcome.cause == FAILED_ANSWER:
            self.answered(outcome.id, where, status, FULL_PAUSE_S)
        return verdict

    def _count_honoured(self, outcome: Outcome) -> None:
        """Count a decision that Envoy did not honour; log it once until Envoy honours one there."""
        endpoint = outcome.endpoint
        if outcome.honoured:
            self._not_honoured.discard(endpoint)
        if outcome.honoured is not False:
            return
        self._metrics.value("epp_picks_not_honoured_total").inc()
        # A late decision of an endpoint that has left the pool is nothing to warn of.
        if endpoint not in self._not_honoured and self._scheduler.datastore.slot_of(endpoint) is not None:
            self._not_honoured.add(endpoint)
            log.warning(
                "Envoy did not honour a decision for %s and used %s: it does not know that endpoint. Let it"
                " follow pool.eds_file, or render its configuration again (`epp envoy render`)",
                endpoint,
                outcome.served,
            )

    def _count_parts(self, outcome: Outcome | None, where: str, failed: bool, how: str) -> None:
        """Count an answer for its endpoint and those who did a part of it.

        A failure counts for these alone where the request comes back: it then shows whose it was.
        """
        now_s, datastore = self._clock.mono_s(), self._scheduler.datastore
        workers = outcome.workers.values() if outcome is not None and where == outcome.where else ()
        if not (failed and workers and outcome is not None and outcome.cause == _PUT_BACK):
            self._count(where, failed, how, now_s)
        for worker in workers:
            self._count(worker, failed, how, now_s)
            slot = datastore.slot_of(worker)
            if failed and slot is not None:
                datastore.retry_after.pause_for(slot, PEER_PAUSE_S, now_s, how)

    def _count(self, address: str, failed: bool, how: str, now_s: float) -> None:
        """Count for an endpoint whether it failed a request; addresses outside the pool are ignored."""
        slot, health = self._scheduler.datastore.slot_of(address), self._scheduler.datastore.health
        if slot is None:
            return
        if failed and self._scheduler.datastore.is_peer(slot):
            self._scheduler.datastore.retry_after.pause_for(slot, PEER_PAUSE_S, now_s, how)
        elif not failed:
            if health.success(slot, now_s, "outcome"):
                log.info("endpoint %s is back", address)
        elif health.failure(slot, "outcome", now_s, f"requests on it failed, the last: {how}"):
            self._metrics.endpoint_event(address, "ejected")
            log.warning("endpoint %s is ejected: requests on it failed, the last: %s", address, how)

    def _publish(self, outcome: Outcome) -> None:
        if outcome.came_back and outcome.status in REFUSALS:
            self.retry_budget.in_vain(self._clock.mono_s())
        self._metrics.requests.finished(outcome)
        if self._recorder is not None:
            self._recorder.record(outcome, self._clock.wall_s())
        for listener in self.on_outcome.values():
            listener(outcome)


def _remember(known: dict[str, _T], decision_id: str, value: _T) -> None:
    known[decision_id] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _words(told: Outcome | Report) -> str:
    """Say how an endpoint failed."""
    failure = told.failure
    return f"status {told.status}" if failure is None else f"error {failure.status} {failure.code}"


def _as_streamed(outcome: Outcome) -> Outcome:
    """Mark an answer of another endpoint than the chosen one, which the stream showed to its end."""
    if outcome.cause == Cause.COMPLETED.value and outcome.where != outcome.endpoint:
        return replace(outcome, cause=Termination.RETRIED_ELSEWHERE.value)
    return outcome


@dataclass(slots=True)
class _EstimatedEnd:
    """A request and its prediction; `slot` and `ended_s` once its stream has ended with its decision."""

    endpoint: str
    rtt_s: float
    expected: Duration
    slot: int = -1
    ended_s: float = math.nan

    def at_s(self, lengths: float) -> float:
        """Monotonic time at which so many times its predicted length is over."""
        return self.ended_s + lengths * self.expected.end_s


class EstimatedReservations:
    """Ends the reservations of requests whose stream ended with the decision.

    Args:
        scheduler: holds the reservations.
        outcomes: takes each end.
        clock: the time.
    """

    def __init__(self, scheduler: Scheduler, outcomes: Outcomes, clock: Clock) -> None:
        self._scheduler, self._outcomes, self._clock = scheduler, outcomes, clock
        self._open: dict[str, _EstimatedEnd] = {}
        self._estimated: dict[str, _EstimatedEnd] = {}
        self._due: list[tuple[float, str]] = []
        self._any = asyncio.Event()
        outcomes.on_outcome["estimated leases"] = self._forget

    def decided(self, decision: Decision) -> None:
        """Remember how long a request is expected to take, until its outcome is there."""
        rtt_s = decision.snapshot.rtt_ms.item(decision.chosen) / 1e3
        self._open[decision.id] = _EstimatedEnd(decision.endpoint, rtt_s, decision.legs[-1].expected)

    def stream_ended(self, decision_id: str) -> None:
        """Estimate the end of a request from now on."""
        lease = self._open.get(decision_id)
        slot = None if lease is None else self._scheduler.datastore.slot_of(lease.endpoint)
        if lease is None or slot is None:  # its endpoint left in the same moment
            self._outcomes.stream_ended(decision_id, Cause.UNOBSERVED.value)
            return
        lease.slot, lease.ended_s = slot, self._clock.mono_s()
        self._estimated[decision_id] = lease
        heapq.heappush(self._due, (lease.ended_s + lease.expected.first_token_s, decision_id))
        self._any.set()

    def unsent(self, decision_id: str) -> None:
        """End a request whose decision did not reach the proxy: no engine has it."""
        if self._estimated.pop(decision_id, None) is not None:
            self._outcomes.stream_ended(decision_id, Cause.CLIENT_GONE.value)

    async def run(self) -> None:
        """Do what is due, for ever; sleep while nothing is estimated."""
        while True:
            await self._any.wait()
            self.tick()
            if not self._due:
                self._any.clear()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Do what is due."""
        now_s = self._clock.mono_s()
        if self._estimated:
            self._free_idle(now_s)
        while self._due and self._due[0][0] <= now_s:
            _, decision_id = heapq.heappop(self._due)
            lease = self._estimated.get(decision_id)
            if lease is None:
                continue
            if now_s < lease.at_s(1.0):
                self._scheduler.datastore.ledger.first_token(decision_id, now_s)
                self._scheduler.prefilled(decision_id)
                heapq.heappush(self._due, (lease.at_s(1.0), decision_id))
            elif now_s < lease.at_s(LONGEST) and self._borne_out(lease, now_s):
                heapq.heappush(self._due, (now_s + TICK_S, decision_id))
            else:
                self._end(decision_id)

    def _free_idle(self, now_s: float) -> None:
        """End what an engine without work cannot have any more."""
        engine = self._scheduler.datastore.engine
        block, scraped_s = engine.block(now_s), engine.updated_s
        idle = set(np.flatnonzero(block[RUNNING] + block[WAITING] == 0.0).tolist())
        if not idle:
            return
        for decision_id, lease in list(self._estimated.items()):
            sent_s = lease.ended_s + lease.rtt_s + IN_TRANSIT_S
            if lease.slot in idle and sent_s < scraped_s[lease.slot] and self._is_there(lease):
                self._end(decision_id)

    def _is_there(self, lease: _EstimatedEnd) -> bool:
        """Whether its slot is its endpoint's: another that took it says nothing of this request."""
        return self._scheduler.datastore.address_of(lease.slot) == lease.endpoint

    def _borne_out(self, lease: _EstimatedEnd, now_s: float) -> bool:
        datastore, slot = self._scheduler.datastore, lease.slot
        busy = datastore.engine.block(now_s)[[RUNNING, WAITING], slot].sum()
        # false without metrics
        return self._is_there(lease) and bool(
            busy >= datastore.in_flight_tokens(slice(slot, slot + 1))[PROMISED_REQUESTS, 0]
        )

    def _end(self, decision_id: str) -> None:
        del self._estimated[decision_id]
        self._outcomes.stream_ended(decision_id, Cause.UNOBSERVED.value, predicted=True)

    def _forget(self, outcome: Outcome) -> None:
        self._estimated.pop(outcome.id, None)
        self._open.pop(outcome.id, None)
