"""Models that answer wrongly, asked until one is right: ``python -m epp.lab.demo.laar`` (`make demo-laar`).

Five simulated models behind one name look keys up in JSON, and are right as often as `CHANCES` says. Half of
the questions are answered once by every model and fitted; the others are asked through a real Envoy with the
OpenAI SDK and `epp.client`, under one policy after the other, and judged to the picker as feedback.
Before that every model streams a few answers, one at a time, so that the picker knows their speeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from epp.client import TRIED_HEADER, Found, first_correct_async
from epp.config.capability import CapabilityFile, ChanceEntry, dump_capability
from epp.errors import EppError
from epp.lab.demo.example import at_least, run_example
from epp.lab.demo.stack import MODEL, Replica, Stack
from epp.lab.sim.api import parse
from epp.lab.sim.lookup import lookups
from epp.learn.capability.fit import fit
from epp.learn.capability.results import Row, write_rows
from epp.policies.registry import create

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from openai import AsyncOpenAI

#: How often each model is right at 4K and at 16K tokens in English, and the share of that in other languages:
#: invented, because the paper shows none as numbers.
CHANCES = {
    "granite-3.1-2b": (0.80, 0.70, 0.85),
    "granite-3.1-8b": (0.92, 0.60, 0.85),
    "phi-3-mini": (0.95, 0.80, 0.85),
    "phi-3-medium": (0.90, 0.65, 0.85),
    "llama-3.1-swallow-8b": (0.95, 0.90, 0.95),
}
#: Long prompts take simulated engines as long as real ones; these fit into a minute or two.
LENGTHS = (4096, 16_384)
QUESTIONS = {
    "en": "JSON data: {data}\nWhat is the value associated with the specified key?\nKey: {key}",
    "ja": "JSONデータ: {data}\n指定されたキーに関連付けられた値は何ですか。\nキー: {key}",
    "zh": "JSON数据: {data}\n与指定的键相关联的值是什么\n键: {key}",
}
#: Bytes of one pair in the object, and of a token in the simulated engines.
PAIR_BYTES, TOKEN_BYTES = 80, 4
FIT_QUESTIONS, AT_ONCE = 40, 8


class Question(NamedTuple):
    """A prompt, and the right answer."""

    name: str
    language: str
    tokens: int
    prompt: str
    value: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        return [{"role": "user", "content": self.prompt}]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="epp.lab.demo.laar", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="laar,least-load", help="one after the other (%(default)s)")
    parser.add_argument(
        "--questions", type=at_least(1), default=8, help="a language and length (%(default)s)"
    )
    parser.add_argument(
        "--streams", type=at_least(1), default=4, help="a model and length, before (%(default)s)"
    )
    return run_example(parser, show, argv)


def show(arguments: argparse.Namespace) -> int:
    """Fit, ask under each policy, and print how long right answers took."""
    try:
        import openai  # noqa: F401, PLC0415  # what the demo shows, and no dependency of the picker
    except ImportError as error:
        raise EppError("the demo asks with the OpenAI SDK: pip install openai") from error
    console, out = Console(), arguments.out
    policies = arguments.policy.split(",")
    for policy in policies:
        create(policy, source="command line", key="--policy")
    write_capability(out)
    asked = questions(range(FIT_QUESTIONS, FIT_QUESTIONS + arguments.questions))
    console.print(f"{len(asked)} questions to {len(CHANCES)} models behind one name, {AT_ONCE} at a time")
    table = Table("policy", "mean s", "right", "right at once", "attempts", "most")
    table.title = "time to the first correct answer"
    for policy in policies:
        found = uvloop.run(ask_all(asked, policy, out.absolute(), arguments.streams))
        attempts = [len(one.attempts) for one in found]
        table.add_row(
            policy,
            f"{sum(one.seconds for one in found) / len(found):.2f}",
            f"{sum(one.correct for one in found) / len(found):.0%}",
            f"{sum(one.attempts[0].correct for one in found) / len(found):.0%}",
            f"{sum(attempts) / len(found):.2f}",
            str(max(attempts)),
        )
    console.print(table)
    console.print(f"\nOutput in {out}/: the models' chances, answers, the fit, logs, records.", markup=False)
    return 0


def question(number: int, language: str, tokens: int) -> Question:
    """Make the question of that number; equal arguments give equal questions."""
    name = f"{language} {tokens} {number}"
    random = Random(name)  # noqa: S311  # no secrets

    def new_id() -> str:
        return str(uuid.UUID(int=random.getrandbits(128), version=4))

    data = {new_id(): new_id() for _ in range(tokens * TOKEN_BYTES // PAIR_BYTES)}
    key = random.choice(list(data))
    prompt = QUESTIONS[language].format(data=json.dumps(data), key=key)
    return Question(name, language, tokens, prompt, data[key])


def questions(numbers: range) -> list[Question]:
    """Make the questions of these numbers in every language and length."""
    return [question(n, language, tokens) for n in numbers for tokens in LENGTHS for language in QUESTIONS]


def write_capability(out: Path) -> None:
    """Write what the models can, their answers to questions that are not asked later, and the fit."""
    truth = {
        model: [
            ChanceEntry(
                language=language, bucket_tokens=tokens, success=chance * (1 if language == "en" else other)
            )
            for language in QUESTIONS
            for tokens, chance in zip(LENGTHS, (short, long), strict=True)
        ]
        for model, (short, long, other) in CHANCES.items()
    }
    (out / "truth.yaml").write_bytes(dump_capability(CapabilityFile(models=truth)))
    rows = []
    for one in questions(range(FIT_QUESTIONS)):
        request = parse(json.dumps({"model": MODEL, "messages": one.messages}).encode(), chat=True)
        for model, lookup in lookups(out / "truth.yaml").items():
            right = "".join(lookup.words(request)) == one.value
            rows.append(Row(one.name, model, one.language, one.tokens, right))
    write_rows(out / "results.jsonl", rows)
    (out / "capability.yaml").write_bytes(dump_capability(fit(rows, seed=0)))


async def ask_all(asked: Sequence[Question], policy: str, out: Path, streams: int) -> list[Found]:
    """Ask all questions under a policy, on a fresh fleet, and give the verdicts to the picker."""
    from openai import AsyncOpenAI  # noqa: PLC0415  # checked in `show`

    sections = {
        "policy": {"name": policy},
        "capability": {"file": str(out / "capability.yaml"), "tell_model": True},
    }
    replicas = [Replica(model, engine_class=model, model=model) for model in CHANCES]
    simulator = ("--accuracy", str(out / "truth.yaml"))
    places = asyncio.Semaphore(AT_ONCE)
    async with (
        Stack(out / policy, replicas, sections, simulator=simulator) as stack,
        AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="-", max_retries=0, timeout=600) as client,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.gather(*(measure(client, model, streams) for model in CHANCES))

        async def ask(one: Question) -> Found:
            async with places:
                found = await first_correct_async(
                    client.chat.completions,
                    lambda answer: answer.choices[0].message.content == one.value,
                    model=MODEL,
                    messages=one.messages,
                    temperature=0,
                )
            for attempt in found.attempts:
                url = f"{stack.picker_url}/decisions/{attempt.decision_id}/feedback"
                async with http.post(url, json={"correct": attempt.correct, "evaluator": "demo"}) as answer:
                    answer.raise_for_status()
            return found

        return await asyncio.gather(*(ask(one) for one in asked))


async def measure(client: AsyncOpenAI, model: str, streams: int) -> None:
    """Stream answers of one model, one after the other: whole answers do not tell when they began."""
    others = ",".join(other for other in CHANCES if other != model)
    for number, tokens in enumerate((2048, 8192, 16_384) * streams):
        one = question(-1 - number, "en", tokens)
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"{model} {one.prompt}"}],
            stream=True,
            extra_headers={TRIED_HEADER: others},
        )
        async for _ in stream:
            pass


if __name__ == "__main__":
    sys.exit(main())
