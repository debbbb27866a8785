"""Named workloads: what `epp lab compare --workload` knows.

Owns the names, and for each how it is paced by default and what policies are tuned on for it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from epp.errors import EppError
from epp_lab.workloads import (
    agent_bursts,
    art_chat,
    mooncake_chat,
    prefix_groups,
    shared_prefix,
    tool_agent,
    wild_chat,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp_lab.compare.trace import TraceRequest

#: Requests in flight at once in the published runs; what waits for its turn slips (source [G]).
PUBLISHED_IN_FLIGHT = 64


def busier(parameters: Any, factor: float) -> Any:
    """Return the same traffic, so many times as much of it: more users, groups or agents, each as before."""
    found = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    rates = ("rate_rps", "agents_per_min")
    changes = {name: found[name] * factor for name in rates if name in found}
    counts = ("requests", "users", "groups", "agents")
    changes |= {name: max(1, round(found[name] * factor)) for name in counts if name in found}
    return replace(parameters, **changes)


@dataclass(frozen=True, slots=True)
class Workload:
    """A load with a name.

    Attributes:
        name: on the command line.
        help: one line.
        generate: parameters and a seed to requests in time order.
        parameters: its parameters.
        time_scale: multiplies send times and think times.
        max_in_flight: the client's limit, None for none.
        tuning: workload on which policies are tuned for this one; under seeds that are never evaluated.
    """

    name: str
    help: str
    generate: Callable[[Any, int], tuple[TraceRequest, ...]]
    parameters: Any
    time_scale: float = 1.0
    max_in_flight: int | None = PUBLISHED_IN_FLIGHT
    tuning: str = ""

    def make(self, seed: int, rate: float = 1.0) -> tuple[TraceRequest, ...]:
        """Return the load for a seed, in time order, ``rate`` times as much as usual."""
        return self.generate(busier(self.parameters, rate) if rate != 1.0 else self.parameters, seed)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "art-chat", "ART-Chat's tuning window, Apr 5, at full speed", art_chat.generate, art_chat.APR_5
        ),
        Workload(
            "art-chat-apr-6",
            "ART-Chat's first evaluation window, at half speed",
            art_chat.generate,
            art_chat.APR_6,
            time_scale=2.0,
            tuning="art-chat",
        ),
        Workload(
            "art-chat-apr-7",
            "ART-Chat's second evaluation window, more multi-turn, at a third of its speed",
            art_chat.generate,
            art_chat.APR_7,
            time_scale=3.0,
            tuning="art-chat",
        ),
        Workload(
            "wild-chat",
            "short public chat of many strangers, at half of the published rate",
            wild_chat.generate,
            wild_chat.WildChat(),
            time_scale=2.0,
        ),
        Workload(
            "demo", "half a minute of chat, closed loop: for a first look", art_chat.generate, art_chat.DEMO
        ),
        Workload(
            "small-chat", "a minute of short chat, for engines on a CPU", art_chat.generate, art_chat.SMALL
        ),
        Workload(
            "agent-bursts",
            "agents that fan out into siblings at one context, closed loop",
            agent_bursts.generate,
            agent_bursts.AgentBursts(),
            max_in_flight=None,
        ),
        Workload(
            "agent-sessions",
            "long sessions of single agents, lengths of recorded ones divided by 8, closed loop",
            agent_bursts.generate,
            agent_bursts.SESSIONS,
            max_in_flight=None,
        ),
        Workload(
            "mooncake-chat",
            "assistant chat as in Mooncake's trace up to 24k: returns minutes later, long answers",
            mooncake_chat.generate,
            mooncake_chat.MooncakeChat(),
        ),
        *(
            Workload(
                f"shared-{percent}",
                f"prompts that share {percent} % with others of their group (Lodestar's ratios)",
                shared_prefix.generate,
                shared_prefix.SharedPrefix(share=percent / 100.0),
            )
            for percent in (10, 30, 50, 70)
        ),
        Workload(
            "hot-contexts",
            "forty contexts shared by many, replaced every five minutes",
            shared_prefix.generate,
            shared_prefix.SharedPrefix(rate_rps=7.0, share=0.85, prefixes=40, zipf=1.1, group_life_s=300.0),
        ),
        Workload(
            "toolagent-like",
            "calls of tools and agents as in Mooncake's toolagent trace, lengths divided by 4",
            tool_agent.generate,
            tool_agent.ToolAgent(rate_rps=22.0, duration_s=900.0, divisor=4),
            max_in_flight=None,
        ),
        Workload(
            "sharing-mixed",
            "groups of prompts, 10, 30, 50 or 70 % of each common to its group (Lodestar's lengths)",
            prefix_groups.generate,
            prefix_groups.PrefixGroups(shares=(0.1, 0.3, 0.5, 0.7)),
            max_in_flight=None,
        ),
    )
}


def workload_named(name: str) -> Workload:
    """Return the workload of that name.

    Raises:
        EppError: there is none; names the nearest.
    """
    found = WORKLOADS.get(name)
    if found is None:
        known = [*WORKLOADS]
        close = difflib.get_close_matches(name, known, n=1)
        fix = f"did you mean {close[0]!r}?" if close else "one of: " + ", ".join(known)
        raise EppError(f"unknown workload {name!r}; {fix}")
    return found
