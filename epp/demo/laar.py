"""`epp laar demo`: five simulated models that answer wrongly, behind a real Envoy, asked until one is right.

The models look keys up and are right as often as a draw of the prior says (`epp.lab.model_accuracies`). Half
of the questions are answered once by every model and fitted; the others are asked through Envoy with the
OpenAI SDK and `epp.client.retry`, under one policy after the other, and judged to the picker as feedback.
Before that every model streams a few answers, one at a time, so that the picker knows their speeds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from epp.client.retry import Found, first_correct_async
from epp.config.capability import CapabilityFile, ChanceEntry, dump_capability
from epp.demo.laar_fleet import MODEL, LaarFleet
from epp.demo.lookups import LookupQuestion, question
from epp.demo.output import output
from epp.envoy.process import find_envoy
from epp.errors import EppError
from epp.laar.fit import fit
from epp.laar.results import Row, write_rows
from epp.lab.model_accuracies import LANGUAGES, LENGTHS, NAMES, draw_truth
from epp.policies.registry import create
from epp.sim.api import parse
from epp.sim.lookup import Lookup, lookups

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from openai import AsyncOpenAI

    from epp.lab.model_accuracies import Truth

#: Long prompts take simulated engines as long as real ones; these fit into a minute or two.
SHOWN_TOKENS = (4096, 16_384)
FIT_QUESTIONS, AT_ONCE = 40, 8
#: Prompts that every model streams an answer to before questions are asked: speeds are learned from these.
MEASURED_TOKENS = (2048, 8192, 16_384) * 4
_TRIED_HEADER = "x-epp-tried-models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--policy", default="laar,least-load", help="one after the other (%(default)s)")
    parser.add_argument("--questions", type=int, default=8, help="of each language and length (%(default)s)")
    parser.add_argument("--draw", type=int, default=101, help="which draw of the models (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; Ctrl-C stops everything that it started.

    Raises:
        EppError: no OpenAI SDK or Envoy is installed, a flag makes no sense, or something did not come up.
    """
    try:
        import openai  # noqa: F401, PLC0415  # what the demo shows, and no dependency of the picker
    except ImportError as error:
        raise EppError("the demo asks with the OpenAI SDK: pip install openai") from error
    find_envoy()
    policies = _checked_flags(arguments)
    with output(arguments.out):
        _show(arguments, policies, arguments.out)
    return 0


def _checked_flags(arguments: argparse.Namespace) -> list[str]:
    """The policies asked for, each once: a fleet has a folder by its policy's name.

    Raises:
        EppError: there is none or an unknown one, or another flag makes no sense.
    """
    policies = list(dict.fromkeys(filter(None, arguments.policy.split(","))))
    if not policies:
        raise EppError("--policy names none")
    for name in policies:  # now, and not when the runs before it are over
        create(name, source="command line", key="--policy")
    if arguments.questions < 1:
        raise EppError("--questions must be 1 or more")
    if arguments.draw < 0:
        raise EppError("--draw must be 0 or more")
    return policies


def _show(arguments: argparse.Namespace, policies: Sequence[str], out: Path) -> None:
    console = Console()
    truth = draw_truth(arguments.draw)
    (out / "truth.yaml").write_bytes(dump_capability(_as_file(truth)))
    checked = _checked(lookups(out / "truth.yaml"))
    write_rows(out / "results.jsonl", checked)
    fitted = fit(checked, arguments.draw)
    (out / "capability.yaml").write_bytes(dump_capability(fitted))
    asked = [
        question(FIT_QUESTIONS + number, language, tokens)
        for number in range(arguments.questions)
        for tokens in SHOWN_TOKENS
        for language in LANGUAGES
    ]
    console.print(f"{len(asked)} questions to {len(NAMES)} models behind one name, {AT_ONCE} at a time")
    found = {}
    for policy in policies:
        found[policy] = uvloop.run(_ask_all(asked, policy, out))
    console.print(_table(found))
    console.print(
        f"\nOutput in {out}/: what the models can, results, the fitted file, logs, records.", markup=False
    )


def _as_file(truth: Truth) -> CapabilityFile:
    return CapabilityFile(
        models={
            name: [
                ChanceEntry(
                    language=language,
                    bucket_tokens=tokens,
                    success=float(truth.accuracy[model, row, column]),
                )
                for row, language in enumerate(LANGUAGES)
                for column, tokens in enumerate(LENGTHS)
            ]
            for model, name in enumerate(NAMES)
        }
    )


def _checked(known: dict[str, Lookup]) -> list[Row]:
    """Every model's answer to questions that are not asked later; the fit holds half of them out."""
    rows = []
    for number in range(FIT_QUESTIONS):
        for tokens in SHOWN_TOKENS:
            for language in LANGUAGES:
                one = question(number, language, tokens)
                request = parse(_body(one), chat=True)
                rows += [
                    Row(one.name, name, language, tokens, "".join(lookup.words(request)) == one.value)
                    for name, lookup in known.items()
                ]
    return rows


def _body(one: LookupQuestion) -> bytes:
    return msgspec.json.encode({"model": MODEL, "messages": _messages(one)})


def _messages(one: LookupQuestion) -> list[dict[str, str]]:
    return [{"role": "user", "content": one.prompt}]


async def _ask_all(asked: Sequence[LookupQuestion], policy: str, out: Path) -> list[Found]:
    """All questions under a policy, on a fresh fleet; told to the picker as feedback."""
    from openai import AsyncOpenAI  # noqa: PLC0415  # checked in `run`

    places = asyncio.Semaphore(AT_ONCE)
    async with (
        LaarFleet(out / policy, policy, out) as fleet,
        AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="-", max_retries=0, timeout=600) as client,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.gather(*(_measure(client, name) for name in NAMES))

        async def ask(one: LookupQuestion) -> Found:
            async with places:
                found = await first_correct_async(
                    client.chat.completions,
                    lambda answer: answer.choices[0].message.content == one.value,
                    model=MODEL,
                    messages=_messages(one),
                    temperature=0,
                )
            for attempt in found.attempts:
                url = f"{fleet.picker_url}/decisions/{attempt.decision_id}/feedback"
                async with http.post(url, json={"correct": attempt.correct, "evaluator": "demo"}) as answer:
                    answer.raise_for_status()
            return found

        return await asyncio.gather(*(ask(one) for one in asked))


async def _measure(client: AsyncOpenAI, name: str) -> None:
    """Stream answers of one model, one after the other: whole answers do not tell when they began."""
    others = ",".join(other for other in NAMES if other != name)
    for number, tokens in enumerate(MEASURED_TOKENS):
        one = question(-1 - number, LANGUAGES[0], tokens)
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"{name} {one.prompt}"}],
            temperature=0,
            stream=True,
            extra_headers={_TRIED_HEADER: others},
        )
        async for _ in stream:
            pass


def _table(found: dict[str, list[Found]]) -> Table:
    table = Table(title="time to the first correct answer")
    for heading in ("policy", "mean s", "right", "right at once", "attempts", "most"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy, questions in found.items():
        count, attempts = len(questions), [len(one.attempts) for one in questions]
        table.add_row(
            policy,
            f"{sum(one.seconds for one in questions) / count:.2f}",
            f"{sum(one.correct for one in questions) / count:.0%}",
            f"{sum(one.attempts[0].correct for one in questions) / count:.0%}",
            f"{sum(attempts) / count:.2f}",
            str(max(attempts)),
        )
    return table
