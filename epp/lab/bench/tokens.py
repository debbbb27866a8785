"""The decision with a model's own tokenizer: what counting adds, and for how long it keeps the event loop.

CPU is the whole process's, tokenizing threads included: from a body to the reservation, of conversations
whose turn before was counted, nine tenths of them. A stall is the most CPU time between two turns of the
event loop while prompts that nobody has seen are counted beside it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

import uvloop

from epp.config.schema import ModelTokenizer, Tokens
from epp.errors import EppError
from epp.extproc.types import Refusal
from epp.lab.bench.prompts import MODEL, conversation
from epp.lab.bench.rig import Rig, request
from epp.server.tokenizers import Tokenizers, load_models

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epp.lab.bench.figures import Figures

#: Prompt length in tokens by name, as `epp.lab.bench.server` has them.
SIZES = {"72 KB": 18_000}
ENDPOINTS, COUNT, STALLS = 3, 16, 4
_BLOCK_BYTES, _TICK_S, _BUDGET_MS = 256, 0.0005, 60_000.0


def measure(found: Figures, number: int, folder: Path) -> None:
    """One round; ``number`` says which, so that no round meets another's prompts.

    Args:
        found: gets the figures.
        number: of the round.
        folder: holds the tokenizer's files.

    Raises:
        EppError: a prompt could not be counted, or was refused.
        ConfigError: the tokenizer cannot be loaded.
    """
    estimated: list[str] = []
    section = Tokens(models={MODEL: ModelTokenizer(source=str(folder.resolve()))})
    models = load_models(section, folder, "bench")
    tokenizers = Tokenizers(models, _BUDGET_MS, block_bytes=_BLOCK_BYTES, on_estimate=estimated.append)
    try:
        for name, tokens in SIZES.items():
            pairs = [conversation(tokens, number * 10_000 + count) for count in range(COUNT + STALLS)]
            spent_ms, stall_ms = uvloop.run(_round(tokenizers, pairs))
            found.add(f"tokens/{name}", "ms CPU", spent_ms, "parse, count, decide; threads included")
            found.add(f"tokens/{name} stall", "ms CPU", stall_ms, "new prompts counted beside it")
    finally:
        tokenizers.close()
    if estimated:
        raise EppError(f"{folder}: prompts were estimated, not counted: {', '.join(sorted(set(estimated)))}")


async def _round(tokenizers: Tokenizers, pairs: Sequence[tuple[bytes, bytes]]) -> tuple[float, float]:
    rig = Rig(ENDPOINTS, tokenizers=tokenizers)
    for before, _ in pairs[:COUNT]:
        await _decide(rig, before)
    gc.collect()
    begun_s = time.process_time()
    for _, whole in pairs[:COUNT]:
        await _decide(rig, whole)
    spent_ms = (time.process_time() - begun_s) / COUNT * 1e3
    return spent_ms, await _stall_ms(rig, [whole for _, whole in pairs[COUNT:]])


async def _decide(rig: Rig, body: bytes) -> None:
    asked = request(body)
    decided = rig.core.decide(asked, await rig.core.read(asked))
    if isinstance(decided, Refusal):
        raise EppError("a request was refused")
    rig.picker.end(decided.decision.id, "stream-end", rig.clock.mono_s())


async def _stall_ms(rig: Rig, bodies: Sequence[bytes]) -> float:
    """The most CPU time between two turns of the loop while the bodies are read one after the other."""

    async def read() -> None:
        for body in bodies:
            await rig.core.read(request(body))

    reading = asyncio.ensure_future(read())
    worst_s, last_s = 0.0, time.process_time()
    while not reading.done():
        await asyncio.sleep(_TICK_S)
        now_s = time.process_time()
        worst_s, last_s = max(worst_s, now_s - last_s), now_s
    await reading
    return worst_s * 1e3
