"""What a picker shows of itself on the live page: frames, and the opinion of another policy.

Only the last hour is kept for it (`epp.console.history`). Figures, endpoints and decision ids; nothing of
prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np

from epp.config.plan import INCUMBENT, Switchback
from epp.console.figures import clock_time, number, share
from epp.console.history import CELLS, OTHER
from epp.console.why import ANY_ENGINE, PLACE, costs_of
from epp.errors import EppError
from epp.metrics.metrics import FAIRNESS_ID
from epp.policies.registry import create
from epp.schedule.second_opinion import ask, is_opinion, quiet
from epp.signals.health import HealthState
from epp.threads import in_daemon_thread
from epp.types import NUMERIC_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from epp.feeds.learned import Learning
    from epp.policies.base import Policy
    from epp.schedule.decision import Decision
    from epp.schedule.program_gate import ProgramGate
    from epp.schedule.weights import WeightBook
    from epp.server.live import Live
    from epp.signals.datastore import Datastore
    from epp.types import Endpoint

#: Decisions that a frame shows; of the others it has sums.
ROWS = 30
#: Flows of the queue that are shown by name: the largest.
MOST_FLOWS = 10
#: Decisions asked anew between two pauses, which let the event loop have the interpreter.
_A_TURN, _PAUSE_S = 4, 0.001
_CACHED = NUMERIC_COLUMNS.index("cached_tokens")
#: Figures with which one can reckon: of another picker, too.
_Figure = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: What waits: priority, flow, engine that is waited for, requests, and the age of the oldest in s.
Waiting = tuple[int, str, str, _Count, _Figure]
_Counts = Annotated[list[_Count], msgspec.Meta(min_length=CELLS, max_length=CELLS)]


class _Row(TypedDict):
    """A decision."""

    id: str
    at: _Figure
    time: str
    model: str
    prompt: str
    cached: str
    endpoint: str
    cost: str
    next: str
    terms: dict[str, float | None]


class _Replica(TypedDict):
    """An endpoint of the pool."""

    id: str
    region: str
    state: str
    out: bool
    running: str
    tokens: str
    prefill: str
    queued: str
    rtt: str
    kv: str
    agents: str
    why: str


class _Weight(TypedDict):
    """A weight of the policy, and how it got there."""

    id: str
    value: str
    tried: str
    bounds: str
    about: str
    history: Annotated[list[tuple[float, float]], msgspec.Meta(min_length=1)]


class _Past(TypedDict):
    """The last hour: when it ended, how long its windows are; group, name, and counts in each window."""

    closed: _Figure
    seconds: tuple[_Figure, _Figure]
    rows: list[tuple[Literal["replica", "model"], str, _Counts, _Counts]]


class Frame(TypedDict):
    """A picker as it shows itself."""

    id: str
    at: _Figure
    leads: bool
    policy: str
    unit: str
    fleet: list[_Replica]
    queue: list[Waiting]
    decisions: Annotated[list[_Row], msgspec.Meta(max_length=ROWS)]
    past: _Past
    failures: list[tuple[str, str, str, str, _Figure, _Count]]
    weights: list[_Weight]
    words: list[str]


class _Sums(TypedDict):
    """What became of the decisions that a policy was asked about."""

    decisions: _Count
    failed: _Count
    agreed: _Count
    ms: _Figure
    ms2: _Figure


class Opinion(TypedDict):
    """What a policy says of a picker's last decisions."""

    id: str
    opinion: str
    sums: _Sums
    live: dict[str, _Count]
    other: dict[str, _Count]


class Refusal(TypedDict):
    """Why a policy has no opinion."""

    id: str
    opinion: str
    error: str


def answer(live: Live, question: str, reply: Callable[[dict[str, Any]], object]) -> None:
    """Answer a page: a policy's opinion, or a frame where it names none.

    Who asks for an opinion that is being made gets the same.
    """
    if not question:
        reply(frame(live))
        return
    if question not in live.asking:
        live.asking[question] = asyncio.ensure_future(_opinion(live, question))
        live.asking[question].add_done_callback(lambda _: live.asking.pop(question))
    live.asking[question].add_done_callback(lambda done: reply(done.result()))


def frame(live: Live) -> dict[str, Any]:
    """Show a picker now."""
    decisions = list(islice(reversed(live.recent), ROWS))
    wall_s, book = live.clock.wall_s(), live.scheduler.weights
    return {
        "id": live.name,
        "at": wall_s,
        "leads": live.link is not None and live.link.leading.leads,
        "policy": f"policy {book.policy}",
        "unit": live.scheduler.policy.unit,
        "fleet": _fleet(live, wall_s),
        "queue": _queue(live),
        "decisions": [_row(decision) for decision in decisions],
        "past": live.history.past,
        "failures": [(*names, *last) for names, last in live.history.failures.items()],
        "weights": _weights(book, wall_s),
        "words": [
            _tuner(book, wall_s),
            *([] if live.learning is None else _learned(live.learning)),
            *([] if live.programs is None else [_held(live.programs, live.clock.mono_s())]),
        ],
    }


async def _opinion(live: Live, name: str) -> dict[str, Any]:
    scheduler = live.scheduler
    try:
        policy = quiet(scheduler.policy if name == scheduler.policy.name else create(name))
    except EppError as error:
        return {"id": live.name, "opinion": name, "error": str(error)}
    decisions = [decision for decision in reversed(live.recent) if is_opinion(decision)]
    async with live.one_opinion:
        found = await in_daemon_thread(_ask, decisions, policy, scheduler.tolerance)
    return {"id": live.name, "opinion": name, **found}


def _row(decision: Decision) -> dict[str, Any]:
    request, chosen, costs = decision.request, decision.chosen, decision.ranking.costs.tolist()
    paid = costs.pop(chosen)
    return {
        "id": decision.id,
        "at": decision.at_wall_s,
        "time": clock_time(decision.at_wall_s),
        "model": request.model or "-",
        "prompt": number(request.prompt_tokens),
        "cached": share(decision.snapshot.block.item(_CACHED, chosen), request.prompt_tokens),
        "endpoint": f"{decision.snapshot.regions[chosen]} {decision.endpoint}".strip(),
        "cost": number(paid, 1),
        "next": f"{min(costs) - paid:+,.1f}" if costs else "-",
        "terms": costs_of({name: column.item(chosen) for name, column in decision.ranking.terms.items()}),
    }


def _fleet(live: Live, wall_s: float) -> list[dict[str, Any]]:
    datastore, now_s = live.scheduler.datastore, live.clock.mono_s()
    agents = {} if live.programs is None else _agents(live.programs)
    members = datastore.members
    slots = np.array([slot for slot, _ in members], np.intp)
    promised, engine = datastore.in_flight_tokens(slots)[:3], datastore.engine.block(now_s)[1:3, slots]
    columns = np.vstack([*promised, *engine, datastore.rtt.rtt_ms(now_s)[slots]]).T.tolist()
    rows = []
    for (slot, endpoint), column in zip(members, columns, strict=True):
        tokens, prefill, running, queued, kv, rtt_ms = column
        state, (since_s, why) = _standing(datastore, slot, endpoint, now_s)
        if since_s:
            why = f"since {clock_time(wall_s - now_s + since_s)} UTC: {why}"
        rows.append(
            {
                "id": endpoint.address,
                "region": endpoint.region,
                "state": state,
                "out": state not in ("healthy", "trial"),
                "running": number(running),
                "tokens": number(tokens),
                "prefill": number(prefill),
                "queued": number(queued),
                "rtt": f"{number(rtt_ms)} ms",
                "kv": share(kv),
                "agents": agents.get(slot, ""),
                "why": why,
            }
        )
    return rows


def _agents(programs: ProgramGate) -> dict[int, str]:
    """Tell by slot how many agents have a place, what of the KV cache that takes, and how many wait."""
    wait = Counter(one.program.home for one in programs.held.waiting() if one.program is not None)
    return {
        slot: f"{len(its.active)} agents, {share(its.used_tokens, its.capacity_tokens)}, {wait[slot]} wait"
        for slot, its in programs.sets.engines.items()
    }


def _held(programs: ProgramGate, now_s: float) -> str:
    """Tell whether turns of agents are held, why, and how long the next one may be."""
    costs = f"their contexts would take {share(programs.guard.share)} of engine time"
    if (unheld_s := programs.unheld_until_s - now_s) > 0.0:
        return f"agents: no turn is held for {unheld_s:,.0f} s more, for callers gave them up; {costs}"
    if not (held := programs.held.waiting()):
        return f"agents: no turn is held; {costs}"
    left_s = min(one.expires_s for one in held) - now_s
    return (
        f"agents: {len(held)} turns are held, the first for {max(left_s, 0.0):,.0f} s more at most; {costs}"
    )


def _standing(
    datastore: Datastore, slot: int, endpoint: Endpoint, now_s: float
) -> tuple[str, tuple[float, str]]:
    """Tell an endpoint's state, since when, 0 where nobody knows, and why."""
    health, state = datastore.health, datastore.health.state(slot, now_s)
    if state is not HealthState.EJECTED:
        if endpoint.draining:
            return "draining", (0.0, "the pool says so")
        if datastore.retry_after.left_s(slot, now_s) > 0.0:
            return "paused", datastore.retry_after.reasons[slot]
        if (proven := health.standing(now_s).proven) is not None and not proven[slot]:
            return "unproven", (0.0, "it has not answered a probe lately")
    return state.value, (0.0, "") if state is HealthState.HEALTHY else health.reasons[slot]


def _queue(live: Live) -> list[Waiting]:
    """Show what waits, how long, and for which engines."""
    now_s, address_of, rows = live.clock.mono_s(), live.scheduler.datastore.address_of, list[Waiting]()
    for waiter in live.waiting():
        target = waiter.targets[-1]
        engine = (isinstance(target, int) and address_of(target)) or ANY_ENGINE
        engine = PLACE if waiter.held else engine
        age_s, flow = round(now_s - waiter.came_s, 1), waiter.flow[:64] or FAIRNESS_ID
        rows.append((waiter.request.priority, flow, engine, 1, age_s))
    return largest_flows(rows)


def largest_flows(rows: Sequence[Waiting]) -> list[Waiting]:
    """Add up what is of one flow and waits for one engine; a priority's smaller flows are one; sort it."""
    sizes = Counter[tuple[int, str]]()
    for band, flow, _, count, _ in rows:
        sizes[band, flow] += count
    largest = dict(sizes.most_common(MOST_FLOWS))
    found = dict[tuple[int, str, str], tuple[int, float]]()
    for band, flow, engine, count, oldest_s in rows:
        key = band, flow if (band, flow) in largest else OTHER, engine
        had, had_s = found.get(key, (0, 0.0))
        found[key] = had + count, max(had_s, oldest_s)
    return sorted(((*key, *figures) for key, figures in found.items()), key=lambda row: (-row[0], -row[3]))


def _weights(book: WeightBook, wall_s: float) -> list[dict[str, Any]]:
    current, arm = book.current, book.arm_weights.values
    return [
        {
            "id": name,
            "value": f"{value:g}",
            "tried": f"→ {arm[name]:g}" if arm[name] != value else "",
            "bounds": "{:g}..{:g}".format(*book.bounds[name]),
            "about": f"from {current.sources[name]}",
            "history": [*((wall_s - at_s, was.values[name]) for at_s, was in book.history), (0.0, value)],
        }
        for name, value in current.values.items()
    ]


def _tuner(book: WeightBook, wall_s: float) -> str:
    plan, trial = book.plan, book.plan.trial
    block = None if trial is None else trial.block_at(wall_s)
    if trial is not None and block is not None:
        if isinstance(trial, Switchback):
            kind, arm = "switchback", trial.arm_of_block(block) or INCUMBENT
        else:
            kind, arm = f"split, {trial.share:.0%} of sessions", trial.arm
        words = f"trial {trial.id}: {kind}, {arm} serves, {trial.valid_until_wall_s - wall_s:,.0f} s to go"
    elif plan.written_wall_s:
        words = f"no trial; weights are {wall_s - plan.written_wall_s:,.0f} s old"
    else:
        words = "it has set no weights"
    return f"tuner: {words}" + (f"; {plan.reason}" if plan.reason else "")


def _learned(learning: Learning) -> Iterator[str]:
    feed = learning.feed
    if feed is not None and (model := feed.model) is not None:
        withdrawn = f", withdrawn: {feed.withdrawn}" if feed.withdrawn else ""
        yield (
            f"learner: model {model.version}, round {model.round}, {model.samples:,} samples,"
            f" {feed.age_s:,.0f} s old{withdrawn}"
        )
    for account in learning.shadow.accounts:
        agreed, count = account.counts["agreed"], account.counts["agreed"] + account.counts["differed"]
        yield (
            f"in shadow {account.policy.name}: {share(agreed, count)} agree,"
            f" {account.difference_s * 1e3:+,.1f} ms a request"
        )


def _ask(decisions: Sequence[Decision], policy: Policy, tolerance: float) -> dict[str, Any]:
    """Ask a policy about decisions as they were taken; queues are those that the live decisions made."""
    live, other, differences_ms = Counter[str](), Counter[str](), list[float]()
    agreed = 0
    for turn, decision in enumerate(decisions):
        if turn % _A_TURN == 0:
            time.sleep(_PAUSE_S)
        try:
            chosen, difference_ms = ask(decision, policy, tolerance)
        except Exception:  # noqa: BLE001, S112  # any policy may be asked, also one that needs what was not seen
            continue
        differences_ms.append(difference_ms)
        agreed += chosen == decision.chosen
        live[decision.endpoint] += 1
        other[decision.snapshot.endpoints[chosen]] += 1
    sums = {
        "decisions": len(differences_ms),
        "failed": len(decisions) - len(differences_ms),
        "agreed": agreed,
        "ms": sum(differences_ms),
        "ms2": sum(each * each for each in differences_ms),
    }
    return {"sums": sums, "live": live, "other": other}
