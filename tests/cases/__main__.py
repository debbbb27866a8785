"""Print, for each public report, the figure that this commit gives beside the one of the commit before.

    python -m tests.cases            # all of them, three minutes
    python -m tests.cases hits       # those whose names contain a word

Each case is engines that say what the report says, behind the real picker and a real Envoy. Ends with 1 when a
figure misses its goal.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.cases.answers import errors, first_tokens, hits, pending
from tests.cases.clients import bodies, http_1_0, model_list
from tests.cases.models import adapters, wrong_model
from tests.cases.prompts import prompts, sequences
from tests.cases.routing import engine_metrics, kills, refusals, two_ups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: What `3610c7f2` gave, by this program.
BEFORE: dict[str, float] = {
    "first token of responses: told too early, ms": 487,
    "first token of messages: told too early, ms": 489,
    "first token of chat: told too early, ms": 485,
    "prompt's tokens no longer pending 1 s into a 2 s prefill, %": 100,
    "errors 500 inside 200 that reach clients, of 90": 87,
    "errors 503 inside 200 that reach clients, of 90": 85,
    "hit ratio lost to requests that read no cache": 0.92,
    "HTTP/1.0 requests not served, of 2": 2,
    "404s for an adapter just listed, of 6": 6,
    "404s for an adapter that moves, of 12 (the first tells)": 12,
    "answers 429 while another engine has room, of 24": 22,
    "answers 503 while another engine has room, of 24": 22,
    "answers 529 while another engine has room, of 24": 21,
    "requests that fail after 20 kills of an engine under load": 7,
    "sequences of n: 8 not counted as running, of 8": 7,
    "pairs of prompts read other than by engines, of 9": 8,
    "engines whose queue is not read, of 9": 7,
    "answers by the wrong model, of 6": 6,
    "models of the pool missing in /v1/models or by name, of 4": 4,
    "`epp up` that die, of 5 pairs started at once": 5,
    "bodies refused that engines take, of 5": 5,
}


class Case(NamedTuple):
    """One figure.

    Attributes:
        name: what it is a figure of.
        number: of the report.
        measure: from a folder to the figure.
        goal: most that it may be.
    """

    name: str
    number: int
    measure: Callable[[Path], Awaitable[float]]
    goal: float


CASES = (
    *(
        Case(f"first token of {api}: told too early, ms", 1, first_tokens(api), 60.0)
        for api in ("responses", "messages", "chat")
    ),
    Case("prompt's tokens no longer pending 1 s into a 2 s prefill, %", 1, pending, 0.0),
    *(
        Case(f"errors {code} inside 200 that reach clients, of 90", 2, errors(code), 12.0)
        for code in (500, 503)
    ),
    Case("hit ratio lost to requests that read no cache", 3, hits, 0.05),
    Case("HTTP/1.0 requests not served, of 2", 4, http_1_0, 0.0),
    Case("404s for an adapter just listed, of 6", 5, adapters("listed"), 0.0),
    Case("404s for an adapter that moves, of 12 (the first tells)", 5, adapters("moves"), 1.0),
    *(
        Case(f"answers {status} while another engine has room, of 24", 6, refusals(status), 0.0)
        for status in (429, 503, 529)
    ),
    Case("requests that fail after 20 kills of an engine under load", 6, kills, 0.0),
    Case("sequences of n: 8 not counted as running, of 8", 7, sequences, 0.0),
    Case("pairs of prompts read other than by engines, of 9", 8, prompts, 0.0),
    Case("engines whose queue is not read, of 9", 9, engine_metrics, 0.0),
    Case("answers by the wrong model, of 6", 10, wrong_model, 0.0),
    Case("models of the pool missing in /v1/models or by name, of 4", 11, model_list, 0.0),
    Case("`epp up` that die, of 5 pairs started at once", 12, two_ups, 0.0),
    Case("bodies refused that engines take, of 5", 13, bodies, 0.0),
)


async def main(word: str) -> int:
    """Measure and print; 1 when a goal is missed."""
    missed = 0
    print(f"{'report':>6}  {'figure':62}{'before':>9}{'now':>9}{'goal':>9}")
    for case in CASES:
        if word not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            value = await case.measure(Path(folder))
        missed += value > case.goal
        before = BEFORE.get(case.name)
        told = "" if before is None else f"{before:.3g}"
        end = "" if value <= case.goal else "  missed"
        print(f"{case.number:6}  {case.name:62}{told:>9}{value:>9.3g}{case.goal:>9.3g}{end}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "")))
