"""What pricing correctness costs: CPU time of a whole decision under `laar`, beside `gorgo` in the same run.

    python -m bench.correctness_cost

From the body to the answer (parse, hash, language, filter, look-ups, price, reserve), in the thread that does
it. Five models in turn over the endpoints, each with a chance for every cell; under `gorgo` there is no
capability file. Every policy decides every request, one after the other, in turns. What else the machine does
only adds, so that the tenth of requests that took least is what is printed: its longest time. Every other
request is a retry that names two tried models.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from statistics import quantiles
from typing import TYPE_CHECKING

from epp.bench.prompts import MODEL, conversation
from epp.bench.rig import HEADERS, Rig
from epp.errors import EppError
from epp.extproc.types import HttpRequest
from epp.server.core import Decided
from epp.signals.capability import Cell
from epp.signals.endpoint import Endpoint
from epp.signals.metrics_text import EngineSample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLICIES = ("gorgo", "gorgo-ms", "laar-paper", "laar")
#: Text by name: its language, and one character of it.
LANGUAGES = {"en": "e", "ja": "\u306e"}
GOAL_MS = 0.1
_MODELS = ("small", "medium", "large", "long", "local")
_TRIED = {**HEADERS, "x-epp-tried-models": "small, long"}
_BUCKETS = tuple(1024 << number for number in range(8))


def rig_of(policy: str, endpoints: int) -> Rig:
    """A picker whose endpoints serve five models behind one name."""
    rig = Rig(0, policy=policy)
    pool = []
    for at in range(endpoints):
        model = _MODELS[at % len(_MODELS)]
        names = {MODEL: model}
        address = f"10.{at >> 8}.{at & 255}.7:8000"
        pool.append(Endpoint(address, engine_class=model, models=frozenset(names), served_names=names))
    fleet, now_s = rig.picker.fleet, rig.clock.mono_s()
    rig.picker.set_pool(pool, now_s)
    for slot, _ in fleet.members:
        fleet.rtt.observe(slot, 20.0 + slot * 0.37, now_s)
        fleet.engine.update(slot, EngineSample("vllm", 3.0, 0.0, 0.4, 500_000, 1.7e9), now_s)
    if policy != "gorgo":
        fleet.capability.replace(
            {
                model: {
                    Cell(language, bucket): 0.2 + 0.1 * number
                    for language in LANGUAGES
                    for bucket in _BUCKETS
                }
                for number, model in enumerate(_MODELS)
            }
        )
    return rig


def requests_of(language: str, tokens: int, count: int, seed: int) -> list[HttpRequest]:
    """Chat requests; every other one names models that it has tried."""
    found = []
    for number in range(count):
        body = json.loads(conversation(tokens, seed * 1000 + number)[1])
        for message in body["messages"]:
            message["content"] = message["content"].replace("e", LANGUAGES[language])
        headers = _TRIED if number % 2 else HEADERS
        text = json.dumps(body, ensure_ascii=False).encode()
        found.append(HttpRequest("POST", HEADERS[":path"], headers, text))
    return found


def decided_ms(rigs: Mapping[str, Rig], requests: Sequence[HttpRequest]) -> dict[str, list[float]]:
    """CPU milliseconds of this thread from body to answer: of each policy, of each request.

    Policies take turns at every request, and at who is first: reading a long body costs whoever meets it
    first more, and what the machine does beside falls on all of them alike.

    Raises:
        EppError: a request was refused.
    """
    spent: dict[str, list[float]] = {policy: [] for policy in rigs}
    turns = list(rigs.items())
    gc.collect()
    for number, one in enumerate(requests):
        first = number // 2 % len(turns)  # retries are every other one, and every policy's turn has both
        for policy, rig in turns[first:] + turns[:first]:
            begun_ns = time.thread_time_ns()
            answer = rig.core.decide(one)
            spent[policy].append((time.thread_time_ns() - begun_ns) / 1e6)
            if not isinstance(answer, Decided):
                raise EppError("a request was refused")
            rig.picker.end(answer.decision.id, "stream-end", rig.clock.mono_s())
    return spent


def rows(endpoints: int, tokens: int, language: str, rounds: int, count: int) -> list[str]:
    """One place's table rows: CPU time of each policy, and what is above `gorgo`'s."""
    rigs = {policy: rig_of(policy, endpoints) for policy in POLICIES}
    spent: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for number in range(rounds):
        for policy, times in decided_ms(rigs, requests_of(language, tokens, count, number)).items():
            spent[policy] += times
    place = f"| {endpoints} | {tokens // 1024}K {language}"
    least = {policy: quantiles(times, n=10)[0] for policy, times in spent.items()}
    return [
        f"{place} | `{policy}` | {took:.3f} | {took / least['gorgo']:.2f} | {took - least['gorgo']:+.3f} |"
        for policy, took in least.items()
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What pricing correctness costs a decision.")
    parser.add_argument("--endpoints", default="5,100", help="sizes of the fleet (%(default)s)")
    parser.add_argument("--tokens", default="4096,65536", help="lengths of prompts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--requests", type=int, default=20, help="requests a round (%(default)s)")
    arguments = parser.parse_args()
    print(f"Goal: `laar` at most {GOAL_MS:g} ms above `gorgo`.\n")
    print("| endpoints | prompt | policy | CPU ms a decision | of `gorgo`'s | above it, ms |")
    print("|---|---|---|---|---|---|")
    for endpoints in (int(size) for size in arguments.endpoints.split(",")):
        for tokens in (int(size) for size in arguments.tokens.split(",")):
            for language in LANGUAGES:
                print(
                    *rows(endpoints, tokens, language, arguments.rounds, arguments.requests),
                    sep="\n",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
