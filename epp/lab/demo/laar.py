"""Models that answer wrongly, asked until one is right: ``python -m epp.lab.demo.laar`` (`make demo-laar`).

Five simulated models behind one name look keys up in JSON, and are right as often as the capability file
has it. They are asked through a real Envoy with the OpenAI SDK and `epp.client`, under one policy after
the other; the picker gets each verdict as feedback. Before that each streams a few answers, so that the
picker knows its speed.
"""

from __future__ import annotations

import asyncio
import sys
from statistics import fmean
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import uvloop
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from epp.client import TRIED_HEADER, Found, first_correct_async
from epp.config.capability import CapabilityFile, ChanceEntry, dump_capability
from epp.lab.compare.stats import mean_interval
from epp.lab.demo.example import example_parser, run_example
from epp.lab.demo.stack import MODEL, Replica, Stack
from epp.learn.capability.questions import question
from epp.policies.registry import create

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from epp.learn.capability.questions import Question

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
LANGUAGES = ("en", "ja", "zh")
AT_ONCE = 8
TITLE = "time to the first correct answer, differences by question with 95 % intervals"


def main() -> int:
    """Run the demo."""
    parser = example_parser("laar", __doc__)
    parser.add_argument("--policy", default="laar,least-load", help="one after the other (%(default)s)")
    parser.add_argument("--questions", type=int, default=8, help="of each language and length (%(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="a model and length, before (%(default)s)")
    return run_example(parser, show)


def show(arguments: argparse.Namespace) -> int:
    """Ask under each policy, and print how long right answers took."""
    console, out = Console(), arguments.out
    policies = arguments.policy.split(",")
    for policy in policies:
        create(policy, source="command line", key="--policy")
    capability = out.absolute() / "capability.yaml"
    capability.write_bytes(dump_capability(CapabilityFile(models={name: chances(name) for name in CHANCES})))
    numbers = range(arguments.questions)
    asked = [question(n, language, tokens) for n in numbers for tokens in LENGTHS for language in LANGUAGES]
    console.print(f"{len(asked)} questions to {len(CHANCES)} models behind one name, {AT_ONCE} at a time")
    table = Table("policy", "mean s", f"s more than {policies[0]}", "right", "attempts", title=TITLE)
    by_policy = {}
    for policy in policies:
        found = uvloop.run(ask_all(asked, policy, capability, arguments.streams))
        seconds = by_policy[policy] = np.array([one.seconds for one in found])
        more, low, high = mean_interval(seconds - by_policy[policies[0]])
        attempts = fmean(len(one.attempts) for one in found)
        right = fmean(one.correct for one in found)
        extra = f"{more:.2f} [{low:.2f}, {high:.2f}]" if policy != policies[0] else "-"
        table.add_row(policy, f"{seconds.mean():.2f}", extra, f"{right:.0%}", f"{attempts:.2f}")
    console.print(table)
    console.print(f"\nOutput in {out}/: the models' chances, logs, records.", markup=False)
    return 0


def chances(model: str) -> list[ChanceEntry]:
    """List how often a model is right, by language and length."""
    short, long, other = CHANCES[model]
    return [
        ChanceEntry(language=language, bucket_tokens=tokens, success=chance * share)
        for language, share in (("en", 1.0), ("ja", other), ("zh", other))
        for tokens, chance in zip(LENGTHS, (short, long), strict=True)
    ]


async def ask_all(asked: Sequence[Question], policy: str, capability: Path, streams: int) -> list[Found]:
    """Ask all questions under a policy, on a fresh fleet, and give the verdicts to the picker."""
    sections = {
        "policy": {"name": policy},
        "capability": {"file": str(capability), "tell_model": True},
    }
    replicas = [Replica(model, engine_class=model, model=model) for model in CHANCES]
    simulator = ("--accuracy", str(capability))
    places = asyncio.Semaphore(AT_ONCE)
    async with (
        Stack(capability.parent / policy, replicas, sections, simulator=simulator) as stack,
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
                    messages=[{"role": "user", "content": one.prompt}],
                    temperature=0,
                )
            for attempt in found.attempts:
                url = f"{stack.picker_url}/decisions/{attempt.decision_id}/feedback"
                async with http.post(url, json={"correct": attempt.correct, "evaluator": "demo"}) as answer:
                    answer.raise_for_status()
            return found

        return await asyncio.gather(*(ask(one) for one in asked))


async def measure(client: AsyncOpenAI, model: str, streams: int) -> None:
    """Stream answers of one model, one after the other: whole answers do not show when they began."""
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
