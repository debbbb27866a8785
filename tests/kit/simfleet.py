"""Small loads and fleets with round numbers, whose times can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.schema import Config, Pool
from epp_lab.compare.trace import TraceRequest
from epp_lab.sim.engine_class import EngineClass
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.scenario import Event, FleetSpec, ReplicaSpec, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Front end 5 ms; prefill 10 ms and 1 ms a token; a decode step 2 ms, and 1 ms for each further sequence.
PLAIN = EngineClass(
    name="plain",
    frontend_ms=5.0,
    frontend_ms_per_token=0.0,
    prefill_base_ms=10.0,
    prefill_ms_per_token=1.0,
    chunk_tokens=100,
    decode_curve=((1, 2.0), (2, 3.0), (10, 11.0)),
    max_running=4,
    kv_capacity_tokens=10_000,
    output_reserve_ratio=1.0,
    context_tokens=1_000,
)
BLOCK_TOKENS = 10


def request(
    at_ms: float,
    *,
    prompt_tokens: int = 50,
    output_tokens: int = 4,
    family: int = 0,
    session: str = "s",
    after: int | None = None,
    think_ms: float = 0.0,
) -> TraceRequest:
    """A request whose prompt shares its blocks with all of its family."""
    count = -(-prompt_tokens // BLOCK_TOKENS)
    return TraceRequest(
        at_ms=at_ms,
        session=session,
        user=session,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        block_ids=tuple(family * 1_000 + number for number in range(count)),
        block_tokens=BLOCK_TOKENS,
        after=after,
        think_ms=think_ms,
    )


def still_fleet(
    count: int = 1,
    *,
    cls: EngineClass = PLAIN,
    rtt_ms: float = 100.0,
    events: Sequence[Event] = (),
    absent: Sequence[int] = (),
) -> FleetSpec:
    """Replicas ``r0:1``, ``r1:1`` ... behind a network without jitter."""
    network = NetworkPath(rtt_ms, jitter=0.0, spike_share=0.0)
    replicas = tuple(ReplicaSpec(f"r{i}:1", cls, network, absent=i in absent) for i in range(count))
    return FleetSpec(replicas, tuple(events))


def options(**changes: object) -> WindowOptions:
    """Options without slow start, so that a replica that joins takes its full share at once."""
    plain = WindowOptions(config=Config(pool=Pool(warmup_s=0.0)))
    return replace(plain, **changes)  # type: ignore[arg-type]  # the test's own words
