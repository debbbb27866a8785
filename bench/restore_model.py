"""What putting public model names back into streamed answers costs Envoy: CPU per request, three ways.

    python -m bench.restore_model [--rounds 5]

Without the filter, with it for requests that were not rewritten, and with it at work. As in `bench.observe`
the ways take turns, one Envoy worker each, and each token is a chunk of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import uvloop

from bench.observe import CONCURRENCY, load
from bench.observe_duplex import cpu_us
from epp.prompt.rewrite import rewrite
from epp.prompt.rewrite_answer import ModelRestorer
from tests.observe import answers
from tests.observe.conftest import Rig, running
from tests.observe.entries import protobuf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: From the settings and the public name that the decision's metadata carries, if any.
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no filter": ({"restore_model": False}, ""),
    "not rewritten": ({}, ""),
    "restored": ({}, "chat"),
}
TOKENS = (16, 128, 1024)
REQUESTS = {16: 480, 128: 192, 1024: 48}
_PAUSE_S = 0.004


def token(text: str) -> bytes:
    """A chunk of a streamed chat as vLLM sends it."""
    return answers.event(
        {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "org/served-model-7b",
            "choices": [
                {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
            ],
        }
    )  # fmt: skip


def stream(tokens: int) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """An answer of so many tokens, then its usage and the end mark."""
    piece = answers.chunk(token(" word"))

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head())
        for _ in range(tokens):
            writer.write(piece)
            await asyncio.sleep(_PAUSE_S)
        writer.write(answers.chunk(answers.usage() + answers.DONE) + answers.chunk(b""))

    return play


def name_publicly(rig: Rig, public: str) -> None:
    """Let the picker's decisions carry the public name."""
    picked = rig.picker._picked  # noqa: SLF001  # the kit's server has no other place for it

    def with_name(**modes: bool) -> Any:
        answer = picked(**modes)
        ours = answer.dynamic_metadata.fields["epp"].struct_value
        ours.fields["model_public"] = protobuf.Value(string_value=public)
        return answer

    rig.picker._picked = with_name  # type: ignore[method-assign]  # noqa: SLF001


async def envoy_cost(rounds: int) -> None:
    """Print Envoy's CPU per request, per way and answer length."""
    async with AsyncExitStack() as stack:
        rigs: dict[str, Rig] = {}
        for name, (changes, public) in WAYS.items():
            rigs[name] = await stack.enter_async_context(running(**changes))
            if public:
                name_publicly(rigs[name], public)
        print(f"{'tokens':>6} " + " ".join(f"{name:>20}" for name in WAYS) + "  (us/request)")
        for tokens in TOKENS:
            found: dict[str, list[float]] = {name: [] for name in WAYS}
            for rig in rigs.values():
                rig.plays(stream(tokens))
                await load(rig, CONCURRENCY)
            for _ in range(rounds):
                for name, rig in rigs.items():
                    before = cpu_us(rig.envoy.pid)
                    await load(rig, REQUESTS[tokens])
                    found[name].append((cpu_us(rig.envoy.pid) - before) / REQUESTS[tokens])
            print(
                f"{tokens:>6} " + " ".join(f"{_cell(v, found['no filter']):>20}" for v in found.values()),
                flush=True,
            )


def _cell(values: list[float], base: list[float]) -> str:
    added = statistics.median(value - off for value, off in zip(values, base, strict=True))
    return f"{statistics.median(values):.0f} ({added:+.0f})"


def picker_cost(calls: int = 3000) -> None:
    """Print the picker's CPU for one rewritten body, and for one chunk where answers pass it."""
    for size in (2_000, 72_000):
        content = ('some words of a prompt, "quoted" now and then\n' * (size // 46 + 1))[:size]  # fmt: skip
        body = json.dumps(
            {"messages": [{"role": "user", "content": content}], "model": "chat", "stream": True}
        ).encode()
        begun = time.process_time()
        for _ in range(calls):
            rewrite(body, model="org/served-model-7b", include_usage=True)
        cost_us = (time.process_time() - begun) / calls * 1e6
        print(f"picker: {cost_us:.1f} us to rewrite a body of {len(body)} bytes")
    machine, piece = ModelRestorer("chat", events=True), token(" word")
    begun = time.process_time()
    for _ in range(calls):
        machine.feed(piece)
    cost_us = (time.process_time() - begun) / calls * 1e6
    print(f"picker: {cost_us:.1f} us to restore a chunk of {len(piece)} bytes")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    picker_cost()
    uvloop.run(envoy_cost(options.rounds))


if __name__ == "__main__":
    main()
