"""Try weights in the simulated deployment at full share, before live traffic meets them.

Equal arguments give equal answers.

Rules
- Weights are searched on some windows and judged on others.
- Every run of a window meets the same requests, network and draws (common random numbers), so that runs are
  compared request by request.
- The price has E2E and failures in it beside TTFT: TTFT alone is won by herding to the nearest (source [G]).
- A simulation that is far from what was recorded judges nothing.
- What a live trial could not show is not proposed: it would explore for a day and end without a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist, mean
from typing import TYPE_CHECKING, Any

from epp_lab.compare.compare import compare
from epp_lab.compare.stats import Statistic, percentile
from epp_lab.compare.trace import select
from epp_lab.sim.run import policy_named, run_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epp_lab.compare.compare import Comparison
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import SimResult
    from epp_lab.sim.scenario import WindowOptions
    from epp_lab.tuner.calibrate import Deployment
    from epp_lab.tuner.search import Search
    from epp_lab.tuner.settings import Goal


#: Requests of a window.
WINDOW_REQUESTS = 1500
WARMUP_SHARE = 0.25
SEARCH_WINDOWS, JUDGE_WINDOWS = 2, 12
#: A rise of E2E p95 that its interval may still hold; its middle must show none.
E2E_MARGIN = 0.05
_E2E_PRICE, _ERROR_PRICE = 2.0, 10.0
#: Factor by which simulated and recorded p95 may differ.
TRUST = 3.0
#: Weights within this relative distance are the same; within the other, what a live trial said of the one
#: holds for the other.
SAME, TRIED = 0.02, 0.1
#: Part of the budget that a search which found nothing again and again still gets.
_LEAST_PART = 8
_P95, _NORMAL = Statistic(95), NormalDist()
#: Percentiles around the 95th: their mean says less of single requests than that one alone.
_TAIL = range(90, 99)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The result of a rehearsal.

    Attributes:
        incumbent: weights that it started from.
        weights: the best found; the incumbent's where none was better.
        simulated_ttft_p95_ms: of the incumbent.
        simulated_e2e_p95_ms: likewise.
        worth: whether they are worth a live trial.
        reason: why, in words.
        ttft: candidate against incumbent, p95 of TTFT, on windows that were not searched on; None when the
            search found nothing.
        e2e: likewise of E2E.
        tried: measurements made.
    """

    incumbent: Mapping[str, float]
    weights: Mapping[str, float]
    simulated_ttft_p95_ms: float
    simulated_e2e_p95_ms: float
    worth: bool = False
    reason: str = ""
    ttft: Comparison | None = None
    e2e: Comparison | None = None
    tried: int = 0


def proposal(
    found: Rehearsed, names: Iterable[str], refused: Iterable[Mapping[str, float]]
) -> tuple[dict[str, float] | None, str]:
    """Say which weights a live trial shall try, None for none, and why.

    Args:
        found: by a rehearsal.
        names: of the weights that may be moved.
        refused: weights that live trials did not promote.
    """
    moved = {name: found.weights[name] for name in names if name in found.weights}
    if not found.worth:
        return None, f"rehearsal: {found.reason}"
    if any(
        all(math.isclose(value, before.get(name, math.nan), rel_tol=TRIED) for name, value in moved.items())
        for before in refused
    ):
        return None, "rehearsal: the best weights found were tried live before, and not promoted"
    return moved, f"rehearsal: {found.reason}"


def budget_after(budget: int, fruitless: int) -> int:
    """Return the measurements for a search after so many candidates in a row came to nothing.

    Half as many each time, down to an eighth: what a whole budget did not find is seldom there.
    """
    return max(1, budget // min(1 << fruitless, _LEAST_PART))


def windows(trace: Sequence[TraceRequest], size: int) -> list[tuple[TraceRequest, ...]]:
    """Cut a trace into windows of about ``size`` requests, two at least, each with its own time.

    All but the first begin earlier by what their warm-up drops, so that caches are warm as they were; their
    own requests all count. A request whose answer to wait for comes before its window is sent at its time.
    """
    count = max(2, len(trace) // size)
    edges = [round(part * len(trace) / count) for part in range(count + 1)]
    lead = WARMUP_SHARE / (1.0 - WARMUP_SHARE)
    begins = [max(0, low - round(lead * (high - low))) for low, high in pairwise(edges)]
    return [
        select(trace[:high], from_ms=trace[begin].at_ms)
        for begin, high in zip(begins, edges[1:], strict=True)
    ]


class Stage:
    """Runs weights on windows of a deployment's requests and remembers what they cost.

    Args:
        deployment: what is simulated.
        options: how the picker is configured.
        seed: of network and draws.
        window_requests: length of a window.
    """

    def __init__(
        self,
        deployment: Deployment,
        options: WindowOptions,
        seed: int,
        window_requests: int,
    ) -> None:
        self.deployment = deployment
        #: What the recorded requests were cut into.
        self.windows = windows(deployment.trace, window_requests)
        self._options, self._seed = options, seed
        self._known: dict[tuple[int, tuple[tuple[str, float], ...]], list[SimResult]] = {}

    def run(self, window: Sequence[TraceRequest], weights: Mapping[str, float]) -> list[SimResult]:
        """Return the results of a window's requests past its warm-up."""
        key = (id(window), tuple(sorted(weights.items())))
        if key not in self._known:
            policy = policy_named(self.deployment.policy, self.deployment.params)
            fleet = self.deployment.fleet
            found = run_window(window, fleet, policy, weights, seed=self._seed, options=self._options)
            first = int(WARMUP_SHARE * len(window))
            self._known[key] = [result for result in found.requests if result.index >= first]
        return self._known[key]

    def cost(
        self, window: Sequence[TraceRequest], weights: Mapping[str, float], against: Mapping[str, float]
    ) -> float:
        """Price weights against others: ``(T + E) / 2 + 2 * max(0, E) + 10 * F``, lower is better.

        ``T`` and ``E`` are logarithms of the ratios of TTFT and E2E, means over the 90th to 98th percentile;
        ``F`` is the difference of the shares of failed requests. A rise of E2E is priced above all that a
        fall of TTFT can win, as no trial would accept it.
        """
        ours, theirs = self.run(window, weights), self.run(window, against)
        gain = _log_tail(ours, "ttft_ms") - _log_tail(theirs, "ttft_ms")
        rise = _log_tail(ours, "e2e_ms") - _log_tail(theirs, "e2e_ms")
        failed = (sum(r.ok for r in theirs) - sum(r.ok for r in ours)) / len(ours)
        return (gain + rise) / 2.0 + _E2E_PRICE * max(0.0, rise) + _ERROR_PRICE * failed


def _log_tail(results: Sequence[SimResult], fact: str) -> float:
    values = _values(results, fact)
    return mean(math.log(percentile(values, share)) for share in _TAIL) if values else math.nan


def _values(results: Sequence[SimResult], fact: str) -> list[float]:
    return [float(getattr(r, fact)) for r in results if r.ok and getattr(r, fact) is not None]


def rehearse(
    stage: Stage,
    search: Search,
    incumbent: Mapping[str, float],
    *,
    budget: int,
    goal: Goal,
    looks: int,
) -> Rehearsed:
    """Search and judge.

    Args:
        stage: the simulated deployment.
        search: over the weights that may be moved; goes on from what it has measured.
        incumbent: weights in force, all of them.
        budget: measurements to make.
        goal: what a live trial would be judged by.
        looks: how often in a row a candidate was sought, this time included.
    """
    searched = stage.windows[::2][:SEARCH_WINDOWS]
    judged = [window for window in stage.windows if window not in searched][-JUDGE_WINDOWS:]
    base = [result for window in judged for result in stage.run(window, incumbent)]
    ttft_ms, e2e_ms = (percentile(_values(base, fact), 95) for fact in ("ttft_ms", "e2e_ms"))
    so_far = Rehearsed(dict(incumbent), dict(incumbent), ttft_ms, e2e_ms)
    far = _far(stage.deployment, ttft_ms, e2e_ms)
    if far:
        return replace(so_far, reason=far)
    begun = search.measurements
    while not search.stop(budget=begun + budget):
        asked = search.ask()
        window = searched[search.measurements % len(searched)]
        search.tell(stage.cost(window, {**incumbent, **asked}, incumbent))
    tried = search.measurements - begun
    found = replace(so_far, weights={**incumbent, **search.recommend()}, tried=tried)
    return _judged(stage, judged, found, goal, looks)


def _judged(
    stage: Stage, judged: Sequence[Sequence[TraceRequest]], found: Rehearsed, goal: Goal, looks: int
) -> Rehearsed:
    names = [n for n, v in found.weights.items() if not math.isclose(v, found.incumbent[n], rel_tol=SAME)]
    if not names:
        reason = f"none of {found.tried} weights tried was better where the search looked"
        return replace(found, weights=found.incumbent, reason=reason)
    ours, theirs = _paired(stage, judged, found.weights), _paired(stage, judged, found.incumbent)
    ttft, e2e = compare(ours, theirs, "ttft_ms", _P95), compare(ours, theirs, "e2e_ms", _P95)
    failed = sum(not r.ok for r in theirs), sum(not r.ok for r in ours)
    worth, reason = worth_a_trial(ttft, e2e, failed, goal, looks)
    return replace(found, worth=worth, reason=reason, ttft=ttft, e2e=e2e)


def _paired(
    stage: Stage, judged: Sequence[Sequence[TraceRequest]], weights: Mapping[str, float]
) -> list[Any]:
    """Return the results of all windows, with numbers and sessions of their own.

    Simulated results have the fields of live ones, by name.
    """
    out: list[Any] = []
    for number, window in enumerate(judged):
        for result in stage.run(window, weights):
            index = number * 1_000_000 + result.index
            out.append(replace(result, index=index, session=f"{number} {result.session}"))
    return out


def worth_a_trial(
    ttft: Comparison, e2e: Comparison, failed: tuple[int, int], goal: Goal, looks: int
) -> tuple[bool, str]:
    """Decide whether a live trial is worth it, and say why.

    Args:
        ttft: candidate against incumbent.
        e2e: likewise.
        failed: requests of incumbent and candidate.
        goal: what the trial would be judged by.
        looks: candidates sought in a row, this one included; the interval of the gain must hold for all of
            them at once (Bonferroni), or the one that follows a row in vain would be a lucky one.
    """
    if math.isnan(ttft.high) or math.isnan(e2e.high):
        return False, f"too few requests to judge on: {ttft.n} of {ttft.sessions} sessions"
    said = f"TTFT p95 {change(ttft)}, E2E p95 {change(e2e)} on requests it was not searched on"
    if failed[1] > failed[0]:
        return False, f"more requests fail ({failed[1]} against {failed[0]}); {said}"
    # Felt latency is E2E but for the wait before the first token, which it has too.
    what, measured = ("TTFT", ttft) if goal.measure == "ttft" else ("E2E", e2e)
    width = _NORMAL.inv_cdf(1.0 - 0.025 / looks) / _NORMAL.inv_cdf(0.975)
    if math.log(measured.ratio) + width * math.log(measured.high / measured.ratio) >= 0.0:
        again = f" at look {looks} in a row" if looks > 1 else ""
        return False, f"no gain in {what} is shown{again}: {said}"
    if e2e.ratio > 1.0 or e2e.high > 1.0 + E2E_MARGIN:
        return False, f"E2E may become worse: {said}"
    if measured.ratio > 1.0 - goal.promise:
        return False, f"a gain below {goal.promise:.0%} is less than a trial could show: {said}"
    return True, f"{what} better and E2E not worse: {said}"


def change(found: Comparison) -> str:
    """Write a ratio and its 95 % interval as changes."""
    low, middle, high = (100.0 * (value - 1.0) for value in (found.low, found.ratio, found.high))
    return f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _far(deployment: Deployment, ttft_ms: float, e2e_ms: float) -> str:
    """Say why the simulation cannot be trusted; empty when it can."""
    for what, simulated, recorded in (
        ("TTFT", ttft_ms, deployment.ttft_p95_ms),
        ("E2E", e2e_ms, deployment.e2e_p95_ms),
    ):
        if math.isnan(simulated):
            return f"no simulated request has a {what}"
        if not math.isnan(recorded) and not 1.0 / TRUST <= simulated / max(recorded, 1e-9) <= TRUST:
            return (
                f"the simulation is not this deployment: {what} p95 {simulated:.0f} ms simulated, "
                f"{recorded:.0f} ms recorded" + "".join(f"; {note}" for note in deployment.notes)
            )
    return ""
