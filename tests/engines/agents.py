"""Eight agents before two llama.cpp servers that keep half of their contexts, turns held in the picker and not.

    python -m tests.engines.agents FOLDER

Each server keeps what its two slots hold, and nothing beside them. An agent's job begins with 1,400 to 1,650
tokens, and has 20 turns of 24; then the agent begins another. What is told is what the engines count, from
when the picker first holds a turn, and of as many turns where it holds none.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from epp.config.pool import EndpointSpec
from epp.keyed_uniform import keyed_uniform
from epp_lab.demo.stack import Stack
from tests.kit.llama_cpp import MODEL, TOKENIZER, llama_cpp_process
from tests.kit.replicas import metric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

AGENTS, JOB_TURNS = 8, 20
#: Words of a job's first context, some ten tokens each.
WORDS = (150, 170)
#: What two contexts take at most, of each server.
KV_TOKENS = 4_300
#: Turns of all agents, and before them where none is held; pause after an answer.
TURNS, WARMUP_TURNS, THINK_S, ANSWER_TOKENS = 400, 100, 0.2, 4
WAIT_S = 60.0
_HELD = {"enabled": True, "quantum_s": 15.0, "age_s": 6.0, "longest_hold_s": WAIT_S}
_PREFILLED = "llamacpp:prompt_tokens_total"


class Sums:
    """Turns answered, and tokens of their prompts by what engines tell of each, asked and cached."""

    def __init__(self) -> None:
        self.turns, self.prompt_tokens, self.cached_tokens = 0, 0, 0

    def take(self, usage: dict[str, Any]) -> None:
        """Count an answer."""
        self.turns += 1
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """Wait until enough has happened."""
        while not await reached():
            await asyncio.sleep(0.2)


async def _agent(http: aiohttp.ClientSession, url: str, number: int, sums: Sums) -> None:
    said, headers = list[dict[str, str]](), dict[str, str]()
    for turn in count():
        if not turn % JOB_TURNS:
            words, name = (
                int(WORDS[0] + (WORDS[1] - WORDS[0]) * keyed_uniform(number, str(turn), "words")),
                f"{number}.{turn}",
            )
            said = [{"role": "system", "content": " ".join(f"{name} knows {word}" for word in range(words))}]
            headers = {"x-session-id": name}
        said.append({"role": "user", "content": f"And {turn}?"})
        body = {"model": MODEL, "messages": said, "max_tokens": ANSWER_TOKENS}
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            told = await answer.json()
        sums.take(told["usage"])
        said.append({"role": "assistant", "content": "Yes."})
        await asyncio.sleep(THINK_S)


async def told(folder: Path, *, held: bool) -> str:
    """Let the agents ask, and tell what engines counted."""
    engines = [llama_cpp_process(folder, cache_ram_mib=0) for _ in range(2)]
    pool = {one.address: EndpointSpec(address=one.address, kv_capacity_tokens=KV_TOKENS) for one in engines}
    sections = {
        "queue": {"enabled": held, "ttl_s": WAIT_S, "programs": _HELD if held else {}},
        "tokens": {"models": {MODEL: {"source": str(TOKENIZER)}}, "budget_ms": 5000.0},
    }
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        served = await stack.enter_async_context(
            Stack(folder / "served", (), sections, endpoints=pool, envoy={"queue_wait_s": WAIT_S})
        )
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def counter(url: str, name: str) -> float:
            async with http.get(f"{url}/metrics") as answer:
                return metric(await answer.text(), name)

        async def prefilled() -> float:
            return sum([await counter(f"http://{one.address}", _PREFILLED) for one in engines])

        async def begun() -> bool:
            if held:
                return await counter(served.picker_url, "epp_program_held") > 0
            return sums.turns >= WARMUP_TURNS

        async def ended() -> bool:
            return sums.turns - turns >= TURNS

        sums, clock = Sums(), asyncio.get_running_loop().time
        tasks = [asyncio.create_task(_agent(http, served.url, number, sums)) for number in range(AGENTS)]
        await sums.until(begun)
        turns, prompt, cached = sums.turns, sums.prompt_tokens, sums.cached_tokens
        before, since_s = await prefilled(), clock()
        await sums.until(ended)
        took_s, computed = clock() - since_s, await prefilled() - before
        turns, prompt, cached = sums.turns - turns, sums.prompt_tokens - prompt, sums.cached_tokens - cached
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return (
        f"{turns} turns in {took_s:.0f} s, {turns / took_s:.2f} a second; of {prompt:,} tokens of prompts "
        f"{cached / prompt:.0%} were cached; {computed:,.0f} were computed"
    )


async def main(folder: Path) -> None:
    """Tell both."""
    for held in (False, True):
        (folder / f"held-{held}").mkdir(parents=True)
        print(
            f"{'held' if held else 'sent at once'}: {await told(folder / f'held-{held}', held=held)}",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
