"""The prefix index at size: memory per cached token, time of a walk and of an insertion, full and evicting.

Conversations of 18k tokens that came in ten turns, over eight endpoints, in a process of their own
(`python -m epp.lab.bench.index TOKENS`). Memory is what the interpreter allocated for the index, to the byte.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING

from epp.apis.types import MeasuredPrompt
from epp.envoy.launch import tied_to_parent
from epp.errors import EppError
from epp.prefix_cache.index import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.lab.bench.figures import Figures

SIZES = {"1M": 1_000_000, "10M": 10_000_000, "100M": 100_000_000}
_BLOCK_TOKENS, _PROMPT_TOKENS, _TURNS, _SLOTS = 64.0, 18_000, 10, 8
_PROBES = 400


def prompt(seed: int, blocks: int) -> MeasuredPrompt:
    """A prompt of so many blocks, the first of which an earlier turn had."""
    chance = random.Random(seed)  # noqa: S311  # hashes of nothing
    hashes = [chance.getrandbits(64) for _ in range(blocks)]
    return MeasuredPrompt(0, round(blocks * _BLOCK_TOKENS), hashes, _BLOCK_TOKENS)


def filled(tokens: int) -> tuple[PrefixIndex, int]:
    """An index that holds so many distinct tokens, and the conversations in it."""
    whole = int(_PROMPT_TOKENS / _BLOCK_TOKENS)
    conversations = max(tokens // _PROMPT_TOKENS, _SLOTS)
    capacity = int(conversations / _SLOTS * whole * _BLOCK_TOKENS * 1.02) + whole * 64
    index = PrefixIndex(capacity_tokens=capacity, max_tokens=2 * tokens)
    for seed in range(conversations):
        chain = prompt(seed, whole).blocks
        for turn in range(1, _TURNS + 1):
            blocks = chain[: whole * turn // _TURNS]
            index.insert(seed % _SLOTS, MeasuredPrompt(0, len(blocks) * 64, blocks, _BLOCK_TOKENS))
    return index, conversations


def measured(tokens: int) -> dict[str, float]:
    """Figures of an index of so many distinct tokens, by name."""
    gc.collect()
    tracemalloc.start()
    index, conversations = filled(tokens)
    gc.collect()
    stats, used = index.stats(), tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    whole = int(_PROMPT_TOKENS / _BLOCK_TOKENS)
    known = [prompt(seed * conversations // _PROBES, whole) for seed in range(_PROBES)]
    fresh = [prompt(conversations + seed, whole) for seed in range(_PROBES)]
    figures = {
        "bytes per token": used / stats.tokens,
        "walk": _each_us(index.match, known),
        "walk, nothing known": _each_us(index.match, fresh),
    }
    for slot in range(_SLOTS):
        index.set_capacity(slot, int(index.tokens(slot)))
    slots = iter(range(len(fresh)))
    figures["insert and evict"] = _each_us(lambda new: index.insert(next(slots) % _SLOTS, new), fresh)
    return figures


def _each_us(work: Callable[[MeasuredPrompt], object], prompts: list[MeasuredPrompt]) -> float:
    begun = time.thread_time()
    for one in prompts:
        work(one)
    return (time.thread_time() - begun) / len(prompts) * 1e6


def measure(figures: Figures, name: str) -> None:
    """One round at one size, in a process of its own.

    Raises:
        EppError: it failed.
    """
    command = tied_to_parent(sys.executable, "-m", "epp.lab.bench.index", str(SIZES[name]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ourselves
    if done.returncode:
        raise EppError(f"the index of {name} tokens failed: {done.stderr[-1000:]}")
    for what, value in json.loads(done.stdout).items():
        figures.add(f"index/{name}/{what}", "B" if "bytes" in what else "us CPU", value)


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
