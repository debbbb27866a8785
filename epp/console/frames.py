"""What a picker shows of itself on the live page: frames, and the opinion of another policy.

Both are made from state that is there in any case; nothing is kept for them. Numbers, endpoints and decision
ids; nothing of prompts.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.config.plan import INCUMBENT, Switchback
from epp.errors import EppError
from epp.policies.base import WORTH_TERM
from epp.policies.registry import POLICIES, create
from epp.schedule.decision import rerun
from epp.schedule.second_opinion import estimated_ms, is_opinion, quiet
from epp.signals.health import State
from epp.threads import in_daemon_thread
from epp.types import NUMERIC_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.clock import Clock
    from epp.cluster.link import Link
    from epp.policies.base import Policy
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.schedule.weights import WeightBook
    from epp.server.learned import Learning
    from epp.server.recent import RecentDecisions
    from epp.signals.fleet import Fleet

#: Decisions that a frame shows; of the others it has sums.
ROWS = 20
#: Terms that are part of no cost.
NOT_COSTS = ("probability", "before_exploring", "explored", "fallback", "ttft_ms", "itl_ms", WORTH_TERM)
#: Decisions asked anew between two pauses, which let the event loop have the interpreter.
_A_TURN, _PAUSE_S = 4, 0.001
#: Longest answer of another picker: a fleet of thousands.
_ANSWER_BYTES = 8 * 1024 * 1024
_CACHED = NUMERIC_COLUMNS.index("cached_tokens")


@dataclass(slots=True)
class Sources:
    """Where a picker's page reads.

    Attributes:
        name: of this picker, for people.
        picker: the picker.
        recent: its newest decisions.
        clock: the time.
        link: the way to other pickers, None without any.
        learning: its learned policies, None without any.
        asking: opinions that are being made, by policy.
    """

    name: str
    picker: Picker
    recent: RecentDecisions
    clock: Clock
    link: Link | None
    learning: Learning | None
    asking: dict[str, asyncio.Task[dict[str, Any]]] = field(default_factory=dict)

    def frame(self) -> dict[str, Any]:
        """Show this picker now."""
        decisions = list(reversed(self.recent))
        picked = dict[str, list[float]]()
        for decision in decisions:
            sums = picked.setdefault(decision.endpoint, [0, 0.0])
            sums[0] += decision.request.prompt_tokens
            sums[1] += decision.fleet.block.item(_CACHED, decision.chosen)
        return {
            "picker": self.name,
            "at": self.clock.wall_s(),
            "made": decisions[0].request.sequence + 1 if decisions else 0,
            "leads": self.link is not None and self.link.leading.leads,
            "fleet": _fleet(self.picker.fleet, self.clock.mono_s()),
            "picked": picked,
            "decisions": [_row(decision) for decision in decisions[:ROWS]],
            "weights": _weights(self.picker.weights, self.clock.wall_s()),
            "learned": None if self.learning is None else _learned(self.learning),
        }

    def opinion(self, name: str, then: Callable[[dict[str, Any]], object]) -> None:
        """Ask a policy about the decisions that are remembered; who asks meanwhile gets the same answer."""
        task = self.asking.get(name)
        if task is None:
            task = self.asking[name] = asyncio.ensure_future(self._opinion(name))
            task.add_done_callback(lambda _: self.asking.pop(name))
        task.add_done_callback(lambda done: then(done.result()))

    async def _opinion(self, name: str) -> dict[str, Any]:
        picker = self.picker
        try:
            same = name == picker.policy.name
            policy = quiet(picker.policy if same else create(name))
        except EppError as error:
            return {"picker": self.name, "policy": name, "error": str(error)}
        decisions = [decision for decision in reversed(self.recent) if is_opinion(decision)]
        found = await in_daemon_thread(_ask, decisions, policy, self.picker.tie_band)
        return {"picker": self.name, "policy": name, **found}

    def answer(self, question: bytes, reply: Callable[[bytes], object]) -> None:
        """Answer the page of another picker: a policy's opinion, or a frame where it names none."""
        if question:
            self.opinion(question.decode(), lambda found: reply(packed({"opinion": found})))
        else:
            reply(packed({"frame": self.frame()}))


def offered() -> list[str]:
    """List the policies that one may ask: those that serve."""
    return [name for name, point in POLICIES.items() if not point.value.startswith("epp.lab.")]


def packed(answer: dict[str, Any]) -> bytes:
    """Pack an answer for another picker."""
    return zlib.compress(msgspec.json.encode(answer), 1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Unpack what another picker answers."""
    found: dict[str, Any] = msgspec.json.decode(zlib.decompressobj().decompress(data, _ANSWER_BYTES))
    return found


def _row(decision: Decision) -> dict[str, Any]:
    request, chosen, costs = decision.request, decision.chosen, decision.ranking.costs.tolist()
    cost = costs.pop(chosen)
    return {
        "id": decision.id,
        "at": decision.at_wall_s,
        "model": request.model,
        "tokens": request.prompt_tokens,
        "cached": round(decision.fleet.block.item(_CACHED, chosen)),
        "to": decision.endpoint,
        "region": decision.fleet.regions[chosen],
        "policy": decision.policy,
        "terms": {name: round(column.item(chosen), 3) for name, column in decision.ranking.terms.items()},
        "cost": cost,
        "next": min(costs, default=None),
        "arm": decision.arm,
    }


def _fleet(fleet: Fleet, now_s: float) -> dict[str, list[Any]]:
    """List the pool, a column each."""
    members = fleet.members
    slots = np.array([slot for slot, _ in members], np.intp)
    queued, pending, running, *_ = fleet.promised(slots)
    engine = fleet.engine.block(now_s)[:, slots]
    columns = {
        "running": running,
        "queued": queued,
        "pending": pending,
        "engine_running": engine[0],
        "engine_waiting": engine[1],
        "kv": engine[2],
        "rtt_ms": fleet.rtt.rtt_ms(now_s)[slots],
        "hit_ratio": fleet.calibration.hit_ratio[slots],
    }
    fleet.health.eligible(now_s)  # moves those whose back-off is over
    return {
        "address": [endpoint.address for _, endpoint in members],
        "region": [endpoint.region for _, endpoint in members],
        "class": [endpoint.engine_class for _, endpoint in members],
        "state": [_state(fleet, slot, now_s, draining=endpoint.draining) for slot, endpoint in members],
        **{name: np.round(column, 2).tolist() for name, column in columns.items()},
    }


def _state(fleet: Fleet, slot: int, now_s: float, *, draining: bool) -> str:
    state = fleet.health.state(slot)
    if state is State.EJECTED:
        return "ejected"
    if draining:
        return "draining"
    return "retry-after" if fleet.retry_after.left_s(slot, now_s) > 0.0 else str(state.value)


def _weights(book: WeightBook, wall_s: float) -> dict[str, Any]:
    plan, trial, current = book.plan, book.plan.trial, book.current
    block = None if trial is None else trial.block_at(wall_s)
    shown: dict[str, Any] = {
        "policy": book.policy,
        "values": current.values,
        "sources": current.sources,
        "bounds": book.bounds,
        "history": [(at_s, weights.values) for at_s, weights in book.history],
        "written": plan.written_wall_s,
        "reason": plan.reason,
        "trial": None,
    }
    if trial is not None and block is not None:
        arm = trial.arm_of_block(block) if isinstance(trial, Switchback) else trial.arm
        kind = "switchback" if isinstance(trial, Switchback) else f"split, {trial.share:.0%} of sessions"
        shown["trial"] = {
            "id": trial.id,
            "kind": kind,
            "arm": arm or INCUMBENT,
            "values": book.arm_weights.values,
            "until": trial.valid_until_wall_s,
        }
    return shown


def _learned(learning: Learning) -> dict[str, Any]:
    feed = learning.feed
    model = None if feed is None else feed.model
    return {
        "model": None
        if model is None or feed is None
        else {
            "version": model.version,
            "round": model.round,
            "samples": model.samples,
            "age_s": feed.age_s,
            "withdrawn": feed.withdrawn,
        },
        "shadow": [
            {"policy": account.policy.name, **account.counts, "difference_ms": account.difference_s * 1e3}
            for account in learning.shadow.accounts
        ],
    }


def _ask(decisions: Sequence[Decision], policy: Policy, tie_band: float) -> dict[str, Any]:
    """Ask a policy about decisions as they were taken; queues are those that the live picks made."""
    moves, differences_ms, agreed, failed = dict[str, list[int]](), list[float](), 0, 0
    waiting = iter(decisions)
    while turn := list(islice(waiting, _A_TURN)):
        for decision in turn:
            try:
                chosen = rerun(decision, policy, tie_band).chosen
            except Exception:  # noqa: BLE001  # any policy may be asked, also one that needs what was not seen
                failed += 1
                continue
            latencies_ms = estimated_ms(decision)
            differences_ms.append(float(latencies_ms[chosen] - latencies_ms[decision.chosen]))
            agreed += chosen == decision.chosen
            for place, index in enumerate((decision.chosen, chosen)):
                moves.setdefault(decision.fleet.endpoints[index], [0, 0])[place] += 1
        time.sleep(_PAUSE_S)
    count = len(differences_ms)
    spread_ms = float(np.std(differences_ms, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return {
        "decisions": count,
        "agreed": agreed,
        "failed": failed,
        "difference_ms": float(np.mean(differences_ms)) if count else math.nan,
        "error_ms": spread_ms,
        "picks": moves,
    }
