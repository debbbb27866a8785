"""What putting public model names back into streamed answers costs Envoy: CPU per request, three ways.

    python -m bench.restore_model [--rounds 5]

Without the filter, with it for requests that were not rewritten, and with it at work. As in `bench.observe`
the ways take turns, one Envoy worker each, and each token is a chunk of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from bench.observe import TOKENS, cell, in_turns
from epp.prompt.rewrite import rewrite
from epp.prompt.rewrite_answer import ModelRestorer
from tests.observe import answers
from tests.observe.conftest import Rig, running
from tests.observe.entries import protobuf

#: From the settings and the public name that the decision's metadata carries, if any.
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no filter": ({"restore_model": False}, ""),
    "not rewritten": ({}, ""),
    "restored": ({}, "chat"),
}


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
            found = await in_turns(rigs, tokens, token(" word"), rounds)
            print(
                f"{tokens:>6} " + " ".join(f"{cell(v, found['no filter']):>20}" for v in found.values()),
                flush=True,
            )


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
