"""Cases of a fuzzer by number, and its command."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(seed: int, count: int, *plays: Callable[[random.Random], str]) -> Counter[str]:
    """Play so many cases, of each kind in turn; what became of them.

    Raises:
        RuntimeError: naming the case that broke a rule.
    """
    became = Counter[str]()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        try:
            became[plays[number % len(plays)](rng)] += 1
        except Exception as error:
            raise RuntimeError(f"seed {seed} case {number}: {error}") from error
    return became


def main(about: str, run_cases: Callable[..., Counter[str]]) -> None:
    """Run, and print what became of the cases."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000)
    for what, count in sorted(run_cases(**vars(parser.parse_args())).items()):
        print(f"{what:16} {count}")
