"""The goals that figures are held against, on a machine of two cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that a figure should be.

    Attributes:
        most: in the figure's unit.
        what: in words.
    """

    most: float
    what: str


#: By the name of the figure. Those of a whole picker are the least that llm-d's takes by its own account
#: (source E): cores at a rate, divided by the rate.
GOALS: Mapping[str, Goal] = {
    "server/above bare/200 tokens": Goal(0.25, "above the bare transport, 200-token prompt"),
    "server/above bare/72 KB": Goal(0.45, "above the bare transport, 72 KB (18k tokens, 90 % known)"),
    "server/above bare, builtin/200 tokens": Goal(0.25, "the same above the picker's own transport, bare"),
    "server/above bare, builtin/72 KB": Goal(0.45, "the same above the picker's own transport, bare"),
    "server/builtin of grpcio, bare/200 tokens": Goal(
        0.33, "the picker's own transport, bare, of grpcio's in the same round"
    ),
    "server/picker: constant/200 tokens": Goal(
        7.2, "a Go picker's at 500 requests a second, on its own machine"
    ),
    "server/picker: constant/100k tokens": Goal(356.0, "the same at 99 requests a second"),
    "tokens/72 KB": Goal(3.0, "the same with a real tokenizer, 72 KB"),
    "tokens/72 KB stall": Goal(3.0, "the longest that counting keeps the event loop"),
    "envoy/1024 of 16 tokens": Goal(1.10, "answer of 1,024 tokens against 16, picker plus Envoy increments"),
    "server/duplex left of constant": Goal(1.3, "full duplex, unobserved, of constant-message mode"),
    "core/18k/3/warm": Goal(0.25, "decision core at 18k tokens, 3 endpoints"),
    "core/18k/100/warm": Goal(0.30, "decision core at 18k tokens, 100 endpoints"),
    "core/18k/1000/warm": Goal(0.45, "decision core at 18k tokens, 1,000 endpoints"),
    "learned/16": Goal(0.30, "decision by a learned model, 16 endpoints"),
    "learned/256": Goal(1.00, "decision by a learned model, 256 endpoints"),
    "envoy/added TTFT p50": Goal(1.5, "added TTFT through Envoy at 50 req/s, 72 KB"),
    "envoy/added TTFT p99": Goal(6.0, "the same, 99th percentile"),
    "index/1M/bytes per token": Goal(4.0, "index memory per cached token per distinct prefix"),
    "index/10M/bytes per token": Goal(4.0, "index memory per cached token per distinct prefix"),
    "index/100M/bytes per token": Goal(4.0, "index memory per cached token per distinct prefix"),
    "idle/100 endpoints": Goal(3.0, "idle, 100 endpoints scraped each second"),
}
