"""What counting tokens costs: estimate beside real tokenizer, first turn beside second, and stalls.

``python -m bench.tokenizer [--model FOLDER ...]``. Each row is a chat of the given size through the picker's
own path: parse, render, count, hash. The first turn knows nothing; the second is the same chat with about a
tenth more, which must cost as much as the tenth. CPU time of the whole process, threads included, best of
the rounds. The stall is the most CPU time that the process spends between two turns of the event loop while
counts run beside it: what other work on the machine takes is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from epp.config.schema import ModelTokenizer
from epp.prompt.blocks import BlockHasher
from epp.prompt.openai import ChatParser
from epp.prompt.tokens import EstimateCounter
from epp.server.tokenizers import Tokenizers
from epp.tokenizer.load import load_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.tokenizer.model import TokenizerModel

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "tokenizer" / "data"
#: Bytes of chat at about four a token.
SIZES = {"1k": 4_000, "18k": 72_000, "100k": 400_000}
NEW_SHARE = 0.1
BLOCK_BYTES = 256
#: The first message, the same in every turn of a chat, and the others.
SYSTEM_BYTES, MESSAGE_BYTES = 2_000, 2_400
#: How often the event loop looks at the clock, and counts beside it.
TICK_S, STALL_ROUNDS = 0.0005, 5


@cache
def source_lines() -> list[str]:
    """All lines of this repository's prose and code."""
    files = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "epp").glob("*/*.py"))
    return [line for file in files for line in file.read_text().splitlines() if line]


def text_of(size: int, seed: int) -> str:
    """Prose and code of this repository; another seed, other text: numbered lines are nowhere the same."""
    lines = source_lines()
    made: list[str] = []
    total, number = 0, seed * 7919
    while total < size:
        line = f"{lines[number * 31 % len(lines)]} {number}"
        made.append(line)
        total += len(line.encode()) + 1
        number += 1
    return "\n".join(made)[:size]


def body(size: int, seed: int) -> bytes:
    """A chat of about so many bytes whose messages alternate."""
    messages = [{"role": "system", "content": text_of(SYSTEM_BYTES, seed)}]
    left, number = size - SYSTEM_BYTES, 1
    while left > 0:
        role = "user" if number % 2 else "assistant"
        messages.append({"role": role, "content": text_of(min(MESSAGE_BYTES, left), seed * 1000 + number)})
        left -= MESSAGE_BYTES
        number += 1
    messages.append({"role": "user", "content": f"Number {seed}, what follows?"})
    return json.dumps({"model": "m", "messages": messages}).encode()


def cpu_ms(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


class Bench:
    """One model's rows.

    Args:
        model: the tokenizer, or None for the estimate alone.
        rounds: each with text never seen before; the best counts.
    """

    def __init__(self, model: TokenizerModel | None, rounds: int) -> None:
        self._model, self._rounds = model, rounds
        self._parser, self._estimate = ChatParser(), EstimateCounter()
        self._hasher = BlockHasher(b"bench", BLOCK_BYTES)
        self._seed = 1

    def once(self, given: bytes) -> int:
        """One request's prompt, from body to measured."""
        parsed = self._parser.parse(given, {})
        counted = self._model.count(parsed.canonical, BLOCK_BYTES) if self._model else None
        return self._hasher.measure(parsed, self._estimate, "", counted).prompt_tokens

    def row(self, size: int) -> tuple[int, float, float]:
        """Tokens, and CPU milliseconds of a first and a second turn."""
        first_ms = second_ms = float("inf")
        tokens = 0
        self.once(body(2_000, 0))
        for _ in range(self._rounds):
            self._seed += 1
            before, after = body(int(size * (1 - NEW_SHARE)), self._seed), body(size, self._seed)
            first_ms = min(first_ms, cpu_ms(lambda before=before: self.once(before)))  # type: ignore[misc]
            second_ms = min(second_ms, cpu_ms(lambda after=after: self.once(after)))  # type: ignore[misc]
            tokens = self.once(after)
        return tokens, first_ms, second_ms

    def stall_ms(self, size: int) -> float:
        """CPU time of the loop's longest absence while counts of new text run beside it, one at a time."""
        if self._model is None:
            return 0.0
        beside = Tokenizers(
            {"m": self._model},
            {"m": 60_000.0},
            block_bytes=BLOCK_BYTES,
            threads=1,
            on_estimate=lambda reason: print("estimated:", reason),
        )
        bodies = [body(size, 10_000 + number) for number in range(STALL_ROUNDS)]
        requests = [self._parser.parse(given, {}) for given in bodies]

        async def watch() -> float:
            worst, counting = 0.0, True

            async def count() -> None:
                nonlocal counting
                for request in requests:
                    pending = beside.start(request)
                    if pending is not None:
                        await pending
                counting = False

            task = asyncio.ensure_future(count())
            last = time.process_time()
            while counting:
                await asyncio.sleep(TICK_S)
                now = time.process_time()
                worst, last = max(worst, now - last), now
            await task
            return worst

        found = asyncio.run(watch()) * 1e3
        beside.close()
        return found


def report(table: Table, name: str, bench: Bench, baseline: Bench) -> None:
    for label, size in SIZES.items():
        tokens, first_ms, second_ms = bench.row(size)
        estimated, _, estimate_ms = baseline.row(size)
        table.add_row(
            name,
            label,
            f"{tokens:,}",
            f"{estimated / tokens - 1:+.0%}",
            f"{first_ms:.2f}",
            f"{second_ms:.2f}",
            f"{second_ms / first_ms:.2f}",
            f"{estimate_ms:.2f}",
            f"{bench.stall_ms(size):.1f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, action="append", help="folder with tokenizer.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-fast", action="store_true", help="tokenizers alone")
    arguments = parser.parse_args()
    table = Table(title="CPU ms a request: parse, render, count, hash; 2nd turn = 10 % new text")
    columns = ("tokenizer", "size", "tokens", "estimate", "1st", "2nd", "2nd/1st", "estimated", "stall ms")
    for column in columns:
        table.add_column(column, justify="left" if column == "tokenizer" else "right")
    for folder in arguments.model or [FIXTURES / "bytes", FIXTURES / "pieces"]:
        section = ModelTokenizer(
            source=str(folder.resolve()),
            fast=not arguments.no_fast,
        )
        model = load_model("m", section, Path(), "bench")
        name = f"{folder.name}, {'kitoken' if model.fast else 'tokenizers'}"
        report(table, name, Bench(model, arguments.rounds), Bench(None, arguments.rounds))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
