"""The decision alone: what parsing, deciding and observing a request cost without any transport.

CPU time of this thread over a batch of requests, divided by their number; with a tokenizer of the whole
process. Prompts are `warm` - an endpoint has nine tenths of them cached, as of a conversation that goes on -
or `cold`. A decision is from the body to the reply, counted in metrics and not recorded; what is observed
comes after it: first token, end, access log entry, outcome.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.errors import EppError
from epp.extproc.types import Destination, LocalReply
from epp.policies.lodestar import Lodestar
from epp.policies.reward_model import DEFAULT_FEATURES, HEADS, RewardModel
from epp.request.access_log import AccessLogReceiver
from epp.request.first_token import FirstTokenReceiver
from epp.schedule.waiting import at_once, in_time
from epp.types import Role
from epp_lab.bench.recorded import MODEL, bodies, first_token_call, log_message
from epp_lab.bench.rig import decide, request, rig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from epp.extproc.types import HttpRequest
    from epp.policies.base import Policy
    from epp.server.app import App
    from epp_lab.bench.figures import Figures

#: Prompt length by name, with the requests in a batch.
SIZES = {
    "200": (200, 200),
    "1k": (1_000, 120),
    "18k": (18_000, 48),
    "64k": (65_536, 14),
    "100k": (100_000, 10),
}
#: Fleets of the learned policy, whose network has the paper's width, and of the others.
LEARNED_ENDPOINTS, WIDTH, ENDPOINTS = (16, 256), 128, 100
#: Policies beside `gorgo`: llm-d's default profile, and the same plugin by plugin.
LLM_D = ("llm-d", "llm-d-profile")
#: Prompts of 72 KB that a tokenizer counts, and new ones during whose counting the event loop is watched.
COUNTED, STALLS, TICK_S = 16, 4, 0.0005
#: Endpoints that prefill, and as many that decode.
PAIRED = 32


def batch(size: str, number: int) -> tuple[list[bytes], list[HttpRequest]]:
    """Make a round's conversations: each one's turn before, and the turn that is measured."""
    tokens, count = SIZES[size]
    pairs = [bodies(tokens, number * 1000 + at) for at in range(1, count + 1)]
    return [before for before, _ in pairs], [request(whole) for _, whole in pairs]


def cpu_ms(work: Callable[[], object], count: int) -> float:
    """Return the CPU milliseconds of this thread per request."""
    gc.collect()
    begun_s = time.thread_time()
    work()
    return (time.thread_time() - begun_s) / count * 1e3


def decision_ms(app: App, requests: Sequence[HttpRequest]) -> tuple[float, float, list[tuple[str, str]]]:
    """Return the CPU to parse and to decide, and each decision's id and endpoint.

    Raises:
        EppError: a request was refused.
    """
    director = app.director
    parse_ms = cpu_ms(lambda: [director.parse(one) for one in requests], len(requests))
    answers: list[Destination | LocalReply] = []

    def decide_all() -> None:
        since_s = time.monotonic()
        answers.extend(at_once(director.direct(one, since_s=since_s)) for one in requests)

    decide_ms = cpu_ms(decide_all, len(requests)) - parse_ms
    picks = [
        (pick.decision_id, pick.destination.partition(",")[0])
        for pick in answers
        if isinstance(pick, Destination)
    ]
    if len(picks) < len(requests):
        raise EppError("a request was refused")
    return parse_ms, decide_ms, picks


def report_ms(app: App, picks: Sequence[tuple[str, str]]) -> float:
    """Return the CPU of all reports on decided requests."""
    outcomes = app.director.outcomes
    calls = [first_token_call(decision_id)[:-2] for decision_id, _ in picks]
    messages = [log_message(picks[at : at + 10]) for at in range(0, len(picks), 10)]
    first_tokens, access_log = FirstTokenReceiver(outcomes), AccessLogReceiver(outcomes)

    def report() -> None:
        for call in calls:
            first_tokens.answer(call)
        for decision_id, _ in picks:
            outcomes.stream_ended(decision_id, "stream-end")
        for message in messages:
            access_log.take(message)

    return cpu_ms(report, len(picks))


async def measure(found: Figures, arguments: argparse.Namespace, rounds: int) -> None:
    """Measure sizes of prompts on sizes of fleets, warm and cold."""
    policy = {"name": arguments.policy}
    for number in range(1, rounds + 1):
        for size in arguments.sizes:
            for endpoints in arguments.endpoints:
                earlier, requests = batch(size, number)
                name = f"core/{size}/{endpoints}"
                with rig(endpoints, policy=policy) as app:
                    parse_ms, decide_ms, _ = decision_ms(app, requests)
                    found.add(f"{name}/cold", "ms", parse_ms + decide_ms)
                with rig(endpoints, policy=policy) as app:
                    for body in earlier:
                        decide(app, body)
                    parse_ms, decide_ms, picks = decision_ms(app, requests)
                    found.add(f"{name}/warm", "ms", parse_ms + decide_ms)
                    found.add(f"{name}/warm: parse", "ms", parse_ms)
                    found.add(f"{name}/warm: decide", "ms", decide_ms)
                    found.add(f"{name}/reports", "ms", report_ms(app, picks), "first token, end, access log")


def reward_model() -> RewardModel:
    """Make a network of the paper's size with random weights: predictions do not matter to their cost."""
    random, width = np.random.default_rng(1), len(DEFAULT_FEATURES) + 1
    layers = tuple(
        (
            (random.standard_normal((before, after)) / before**0.5).astype(np.float32),
            np.zeros(after, np.float32),
        )
        for before, after in pairwise((width, WIDTH, WIDTH, WIDTH, len(HEADS)))
    )
    return RewardModel(
        features=DEFAULT_FEATURES,
        classes=("",),
        mean=np.zeros(width),
        std=np.ones(width),
        low=np.full(width, -1e9),
        high=np.full(width, 1e9),
        layers=layers,
        heads=HEADS,
        scale=np.ones(len(HEADS)),
        offset=np.zeros(len(HEADS)),
        samples=10_000,
        seen=10_000,
        round=1,
        trained_at_s=0.0,
        tail=0.001,
        congestion_ms=0.1,
    )


async def measure_policies(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure decisions: llm-d's above `gorgo`'s; by a reward model, and by its heuristic without one."""
    models = {"": Lodestar(reward_model()), ": no model": Lodestar()}
    for number in range(1, rounds + 1):
        gorgo_ms = _warm_ms(number, ENDPOINTS)
        found.add(f"policies/gorgo/{ENDPOINTS}", "ms", gorgo_ms)
        for name in LLM_D:
            above_ms = _warm_ms(number, ENDPOINTS, policy={"name": name}) - gorgo_ms
            found.add(f"policies/{name} above gorgo/{ENDPOINTS}", "ms", above_ms)
        for endpoints in LEARNED_ENDPOINTS:
            for name, model in models.items():
                decide_ms = _warm_ms(number, endpoints, model, policy={"name": "lodestar"})
                found.add(f"policies/lodestar{name}/{endpoints}", "ms", decide_ms)


async def measure_pairs(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure decisions among endpoints of which each half is there for a part of requests."""
    for number in range(1, rounds + 1):
        earlier, requests = batch("1k", number)
        with rig(2 * PAIRED) as app:
            members = [endpoint for _, endpoint in app.scheduler.datastore.members]
            pool = [
                replace(endpoint, roles=frozenset({Role.DECODE if at < PAIRED else Role.PREFILL}))
                for at, endpoint in enumerate(members)
            ]
            app.scheduler.set_pool(pool, time.monotonic())
            for body in earlier:
                decide(app, body)
            found.add(f"pairs/{PAIRED} x {PAIRED}", "ms", decision_ms(app, requests)[1])


def _warm_ms(number: int, endpoints: int, policy: Policy | None = None, /, **sections: Any) -> float:
    """Return the CPU of a decision on a warm prompt of 1,000 tokens, by ``policy`` or the configured one."""
    earlier, requests = batch("1k", number)
    with rig(endpoints, **sections) as app:
        if policy is not None:
            app.scheduler.replace_policy(policy)
        for body in earlier:
            decide(app, body)
        return decision_ms(app, requests)[1]


async def measure_tokens(found: Figures, arguments: argparse.Namespace, rounds: int) -> None:
    """Measure the decision with a model's own tokenizer, and how long counting keeps the event loop.

    A stall is the most CPU time between two turns of the event loop while unseen prompts are counted.

    Raises:
        EppError: a prompt was estimated or refused.
    """
    models = {MODEL: {"source": str(arguments.tokenizer.resolve())}}
    for number in range(1, rounds + 1):
        pairs = [bodies(SIZES["18k"][0], number * 1000 + at) for at in range(COUNTED + STALLS)]
        with rig(3, tokens={"models": models, "budget_ms": 60_000}) as app:
            for before, _ in pairs[:COUNTED]:
                await _read_and_decide(app, before)
            gc.collect()
            begun_s = time.process_time()
            for _, whole in pairs[:COUNTED]:
                await _read_and_decide(app, whole)
            spent_ms = (time.process_time() - begun_s) / COUNTED * 1e3
            found.add("tokens/72 KB", "ms CPU", spent_ms, "parse, count, decide; threads included")
            stall_ms = await _stall_ms(app, [whole for _, whole in pairs[COUNTED:]])
            found.add("tokens/72 KB stall", "ms CPU", stall_ms, "new prompts counted beside it")


async def _read_and_decide(app: App, body: bytes) -> None:
    pick = await in_time(app.director.direct(request(body), since_s=time.monotonic()))
    decision = None if isinstance(pick, LocalReply) else app.director.recent.get(pick.decision_id)
    if decision is None or not decision.request.token_offsets:
        raise EppError("a prompt was estimated or refused")


async def _stall_ms(app: App, bodies: Sequence[bytes]) -> float:
    async def read() -> None:
        for body in bodies:
            await _read_and_decide(app, body)

    reading = asyncio.ensure_future(read())
    worst_s, last_s = 0.0, time.process_time()
    while not reading.done():
        await asyncio.sleep(TICK_S)
        now_s = time.process_time()
        worst_s, last_s = max(worst_s, now_s - last_s), now_s
    await reading
    return worst_s * 1e3
