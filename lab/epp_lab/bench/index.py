"""The prefix index at size: memory per cached token, time of a walk and of an insertion, full and evicting.

Conversations of 18k tokens that came in ten turns, over eight endpoints. Memory is what the interpreter
allocated for the index, to the byte.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from typing import TYPE_CHECKING

from epp.prefix_cache.index import PrefixIndex
from epp.types import RequestInfo
from epp_lab.compare.trace_stats import parse_tokens

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from epp_lab.bench.figures import Figures

_BLOCK_TOKENS, _BLOCKS, _TURNS, _SLOTS, _PROBES = 64, 281, 10, 8, 400


def prompt(seed: int, blocks: int = _BLOCKS) -> RequestInfo:
    """Make a prompt out of a conversation's first blocks."""
    chance = random.Random(seed)  # noqa: S311  # hashes of nothing
    hashes = [chance.getrandbits(64) for _ in range(blocks)]
    return RequestInfo(prompt_tokens=blocks * _BLOCK_TOKENS, blocks=hashes, block_tokens=float(_BLOCK_TOKENS))


def figures(tokens: int) -> dict[str, float]:
    """Fill an index with distinct tokens, and measure it."""
    conversations = max(tokens // (_BLOCKS * _BLOCK_TOKENS), _SLOTS)
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(capacity_tokens=2 * tokens // _SLOTS + 100_000, max_tokens=2 * tokens + 200_000)
    for seed in range(conversations):
        for turn in range(1, _TURNS + 1):
            index.insert(seed % _SLOTS, prompt(seed, _BLOCKS * turn // _TURNS))
    gc.collect()
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    known = [prompt(seed * conversations // _PROBES) for seed in range(_PROBES)]
    fresh = [prompt(conversations + seed) for seed in range(_PROBES)]
    found = {
        "bytes per token": used_bytes / index.distinct_tokens,
        "walk": _each_us(index.match, known),
        "walk, nothing known": _each_us(index.match, fresh),
    }
    for slot in range(_SLOTS):
        index.set_capacity(slot, int(index.tokens(slot)))
    slots = iter(range(len(fresh)))
    found["insert and evict"] = _each_us(lambda new: index.insert(next(slots) % _SLOTS, new), fresh)
    return found


def _each_us(work: Callable[[RequestInfo], object], prompts: list[RequestInfo]) -> float:
    begun_s = time.thread_time()
    for one in prompts:
        work(one)
    return (time.thread_time() - begun_s) / len(prompts) * 1e6


async def measure(found: Figures, _: argparse.Namespace, rounds: int, *, sizes: tuple[str, ...]) -> None:
    """Measure indexes of some sizes."""
    for size in sizes * rounds:
        for what, value in figures(parse_tokens(size)).items():
            found.add(f"index/{size}/{what}", "B" if "bytes" in what else "us CPU", value)
