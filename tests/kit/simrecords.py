"""Flight records of a simulated deployment, as its picker would have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.apis.usage import Usage
from epp.policies.registry import create
from epp.prefix_cache.blocks import BlockHasher
from epp.records.files import file_name
from epp.schedule.decision import Outcome, outcome_record, to_record
from epp_lab.sim.fleet import FleetSim
from epp_lab.sim.scenario import WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.schedule.decision import Decision
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import SimResult
    from epp_lab.sim.scenario import FleetSpec

_HASHER = BlockHasher(b"the secret of the tests")


class _Recorded(FleetSim):
    """A simulation that remembers what was decided and what became of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.decisions: dict[str, Decision] = {}
        self.seen: list[SimResult] = []
        super().__init__(*arguments, **options)

    def decided(self, decision: Decision) -> None:
        self.decisions[decision.id] = decision

    def over(self, result: SimResult) -> None:
        self.seen.append(result)
        super().over(result)


def record_simulation(
    folder: Path,
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    policy: str,
    weights: Mapping[str, float],
) -> None:
    """Serve a load and write what a recorder would have written."""
    sim = _Recorded(requests, fleet, create(policy), weights=weights, seed=3, options=WindowOptions())
    sim.run()
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[tuple[float, dict[str, Any]]] = []
    for result in sim.seen:
        decision = sim.decisions[result.decision_id]
        blocks, block_tokens = _HASHER.coarse_ids(decision.request), decision.request.block_tokens
        record = to_record(decision, blocks=blocks, block_tokens=block_tokens * _HASHER.coarse_blocks)
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
