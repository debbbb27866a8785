"""Flight records of a simulated deployment, as its picker would have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.apis.usage import Usage
from epp.lab.sim.fleet import FleetSim
from epp.lab.sim.scenario import WindowOptions
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.records.files import file_name
from epp.schedule.decision import Outcome, outcome_record, to_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.lab.compare.trace import TraceRequest
    from epp.lab.sim.results import SimResult
    from epp.lab.sim.scenario import FleetSpec
    from epp.schedule.decision import Decision
    from epp.types import RequestInfo

_HASHER = BlockHasher(b"the secret of the tests")


def record_simulation(
    folder: Path,
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    policy: str,
    weights: Mapping[str, float] | None = None,
) -> list[SimResult]:
    """Serve a load and write what a recorder would have written; what clients saw."""
    sim = FleetSim(requests, fleet, create(policy), weights=weights or {}, seed=3, options=WindowOptions())
    decisions: dict[str, tuple[Decision, RequestInfo]] = {}
    pick, over = sim._picker.pick, sim.over
    results: list[SimResult] = []

    def picked(request: RequestInfo, now_s: float, wall_s: float) -> Decision:
        decision = pick(request, now_s, wall_s)
        decisions[decision.id] = (decision, request)
        return decision

    def ended(result: SimResult) -> None:
        results.append(result)
        over(result)

    sim._picker.pick = picked  # type: ignore[method-assign]
    sim.over = ended  # type: ignore[method-assign]
    sim.run()
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[tuple[float, dict[str, Any]]] = []
    for result in results:
        decision, ask = decisions[result.decision_id]
        record = to_record(
            decision,
            blocks=_HASHER.coarse_ids(ask),
            block_tokens=ask.block_tokens * _HASHER.coarse_blocks,
        )
        outcome = Outcome(
            id=decision.id,
            endpoint=decision.endpoint,
            served=result.endpoint,
            cause="completed" if result.ok else "upstream-reset",
            status=200 if result.ok else 503,
            ttft_ms=float("nan") if result.ttft_ms is None else result.ttft_ms,
            e2e_ms=result.e2e_ms,
            usage=Usage(result.prompt_tokens, result.completion_tokens, result.cached_tokens),
        )
        end_s = decision.at_wall_s + result.e2e_ms / 1e3
        lines += [(decision.at_wall_s, record), (end_s, outcome_record(outcome, end_s))]
    lines.sort(key=lambda line: line[0])
    encoder = msgspec.json.Encoder()
    text = b"".join(encoder.encode(record) + b"\n" for _, record in lines)
    (folder / file_name(lines[0][0], compressed=False)).write_bytes(text)
    return results
