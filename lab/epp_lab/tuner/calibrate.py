"""Calibrate a simulated deployment from the newest records of a real one.

Taken are: endpoints, regions and round trips as the decisions saw them; prefill and decode rates as the
picker learned them; KV capacity as tokens in use over share in use; the share of predicted hits that engines
confirmed; arrivals, sessions, prompts (as ids of their prefixes) and answer lengths as recorded. Requests
that waited for an answer wait for the simulated one.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from epp.config.plan import INCUMBENT
from epp.errors import EppError
from epp.records.files import read_records, record_files
from epp_lab.compare.files import read_flight_records
from epp_lab.compare.stats import percentile
from epp_lab.sim.engine_class import ENGINE_CLASSES, L40S_X2
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.scenario import FleetSpec, ReplicaSpec
from epp_lab.tuner.samples import read_stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.engine_class import EngineClass

#: Requests that a rehearsal uses, the newest ones.
MAX_REQUESTS = 24_000
#: Fewer than these make no rehearsal.
MIN_REQUESTS = 400
#: Decisions whose signals are looked at.
_SIGNALS = 400
#: A share of cache in use that is large enough to divide by.
_LEAST_USAGE = 0.02
_MOST_LOST = 0.9
_CAPACITY = "capacity"
_RATES = ("prefill_base_ms", "prefill_ms_per_token", "decode_base_ms", "decode_ms_per_request")
_DECODE_TO = 64


class CalibrationError(EppError):
    """The records do not hold enough to simulate the deployment."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment that can be simulated.

    Attributes:
        policy: that priced the newest requests.
        fleet: the simulated replicas.
        trace: the requests, in closed loop where sessions waited for answers.
        params: the policy's parameters.
        weights: in force with the newest decision.
        ttft_p95_ms: as recorded; NaN where it is unknown.
        e2e_p95_ms: likewise.
        notes: what had to be assumed, in words.
    """

    policy: str
    fleet: FleetSpec
    trace: tuple[TraceRequest, ...]
    params: Mapping[str, object] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    ttft_p95_ms: float = math.nan
    e2e_p95_ms: float = math.nan
    notes: tuple[str, ...] = ()


def newest_records(
    folder: Path, policy: str, max_requests: int = MAX_REQUESTS
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Read the newest decisions of a policy and their outcomes, oldest first.

    Args:
        folder: of the flight recorder.
        policy: whose; any, that of the newest file's last decision, when empty.
        max_requests: decisions at most.

    Raises:
        EppError: there is no such folder.
    """
    decisions: list[Mapping[str, Any]] = []
    outcomes: dict[str, Mapping[str, Any]] = {}
    for path in reversed(record_files(folder)):
        found = []
        with suppress(EppError):  # another schema: what else there is may do
            for record in read_records(path):
                if record["kind"] == "outcome":
                    outcomes[record["id"]] = record
                elif record["kind"] == "decision" and record["basis"] == "policy":
                    found.append(record)
        if not policy and found:
            policy = found[-1]["policy"]
        decisions = [record for record in found if record["policy"] == policy] + decisions
        if len(decisions) >= max_requests:
            break
    decisions.sort(key=lambda record: float(record["at"]))
    decisions = decisions[-max_requests:]
    return decisions, [outcomes[d["id"]] for d in decisions if d["id"] in outcomes]


def calibrate(decisions: Sequence[Mapping[str, Any]], outcomes: Sequence[Mapping[str, Any]]) -> Deployment:
    """Build the deployment that these records are of.

    Raises:
        CalibrationError: too few records, or records without what is needed.
    """
    if len(decisions) < MIN_REQUESTS:
        raise CalibrationError(
            f"not enough evidence ({len(decisions)} of {MIN_REQUESTS} requests) to rehearse on"
        )
    notes: list[str] = []
    try:
        trace = read_flight_records([*decisions, *outcomes])
        longest = max(request.prompt_tokens + request.output_tokens for request in trace)
        fleet = _fleet(decisions[-_SIGNALS:], longest + 1, notes)
        unended = len(decisions) - sum(outcome.get("e2e_ms") is not None for outcome in outcomes)
        if unended:
            notes.append(f"{unended} of {len(decisions)} requests have no recorded end: none waits for them")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CalibrationError(f"the records cannot be simulated: {error!r}") from error
    last = decisions[-1]
    stamped = ((read_stamp(record.get("arm", "")), record) for record in reversed(decisions))
    first_arm = (record for stamp, record in stamped if stamp is None or stamp.arm == INCUMBENT)
    in_force = next(first_arm, last)["weights"]
    return Deployment(
        policy=last["policy"],
        params=last.get("params", {}),
        weights={name: float(value) for name, value in in_force.items()},
        fleet=fleet,
        trace=trace,
        ttft_p95_ms=_p95(outcomes, "ttft_ms"),
        e2e_p95_ms=_p95(outcomes, "e2e_ms"),
        notes=tuple(notes),
    )


def _p95(outcomes: Sequence[Mapping[str, Any]], fact: str) -> float:
    values = [float(o[fact]) for o in outcomes if o.get(fact) is not None and (o.get("status") or 0) < 400]
    return percentile(values, 95)


def _fleet(decisions: Sequence[Mapping[str, Any]], least_tokens: int, notes: list[str]) -> FleetSpec:
    columns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    seen: Counter[str] = Counter()
    about: dict[str, tuple[str, str]] = {}
    for record in decisions:
        for row, address in enumerate(record["endpoints"]):
            about[address] = (record["regions"][row], record["engine_classes"][row])
            known = {
                name: float(values[row])
                for name, values in record["signals"].items()
                if row not in record["unknown"].get(name, ())
            }
            used, usage = known.get("engine_used_tokens", 0.0), known.get("engine_kv_usage", 0.0)
            if usage >= _LEAST_USAGE and used > 0.0:
                known[_CAPACITY] = used / usage
            seen[address] += 1
            for name, value in known.items():
                columns[address][name].append(value)
    # Who was rarely a candidate has left, or has just come.
    present = [address for address, times in seen.items() if times >= 0.2 * len(decisions)]
    if not present:
        raise ValueError("no endpoint was a candidate for long")
    replicas = [
        _replica(address, about[address], columns[address], least_tokens, notes) for address in present
    ]
    return FleetSpec(tuple(replicas))


def _replica(
    address: str,
    about: tuple[str, str],
    known: Mapping[str, list[float]],
    least_tokens: int,
    notes: list[str],
) -> ReplicaSpec:
    """Describe an endpoint; its context and cache hold the longest request, because that was served."""
    region, named = about

    def middle(name: str) -> float:
        return statistics.median(known[name]) if name in known else math.nan

    rtt_ms, hit_ratio, capacity = middle("rtt_ms"), middle("hit_ratio"), middle(_CAPACITY)
    if math.isnan(rtt_ms):
        rtt_ms = 0.0
        notes.append(f"{address}: its round trip is not known, taken as 0")
    lost = 0.0 if math.isnan(hit_ratio) else min(max(1.0 - hit_ratio, 0.0), _MOST_LOST)
    engine = _engine(address, named, {name: middle(name) for name in _RATES}, notes)
    if math.isnan(capacity):
        capacity = engine.kv_capacity_tokens
        notes.append(f"{address}: its KV capacity is not known, taken as {capacity}")
    engine = replace(
        engine,
        context_tokens=max(engine.context_tokens, least_tokens),
        kv_capacity_tokens=max(round(capacity), least_tokens),
    )
    return ReplicaSpec(address, engine, NetworkPath(rtt_ms), region, lost_hit_share=lost, known_as=named)


def _engine(address: str, named: str, rates: Mapping[str, float], notes: list[str]) -> EngineClass:
    base = ENGINE_CLASSES.get(named, L40S_X2)
    if not all(value > 0.0 for value in rates.values()):  # NaN is not above 0 either
        notes.append(f"{address}: its rates are not known, taken from class {base.name}")
        return replace(base, name=named or base.name)
    one_ms, more_ms = rates["decode_base_ms"], rates["decode_ms_per_request"]
    return replace(
        base,
        name=named or base.name,
        # The learned fixed time has the engine's front end in it.
        prefill_base_ms=max(rates["prefill_base_ms"] - base.frontend_ms, 1.0),
        prefill_ms_per_token=rates["prefill_ms_per_token"],
        decode_curve=((1, one_ms), (_DECODE_TO, one_ms + (_DECODE_TO - 1) * more_ms)),
    )
