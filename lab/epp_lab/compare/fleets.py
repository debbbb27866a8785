"""Simulated fleets by name, or by a line of text."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec

from epp.errors import EppError
from epp.records.files import DAMAGED
from epp.types import Role
from epp_lab.sim.engine_class import ENGINE_CLASSES, H100, H100_8B, H100_70B, L40S_X2, EngineClass
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.scenario import FleetSpec, Regions, ReplicaSpec, parse_fleet, regional_fleet

#: Share of requests that find nothing although it should be there; fitted (docs/measured/simulator.md).
CALIBRATED_LOST_HITS = 0.3
#: What llm-d's picker reads metrics by, by default.
LLM_D_SCRAPE_S = 0.05


def calibrated(fleet: FleetSpec) -> FleetSpec:
    """Return a fleet with each L40Sx2 as calibrated.

    It takes prefixes up at checkpoints only, and every replica loses hits besides; the picker knows neither.
    """
    hybrid = ENGINE_CLASSES["l40s-x2-hybrid"]
    replicas = tuple(
        replace(
            spec,
            engine_class=hybrid if spec.engine_class is L40S_X2 else spec.engine_class,
            known_as=spec.known_as or spec.engine_class.name,
            lost_hit_share=CALIBRATED_LOST_HITS,
        )
        for spec in fleet.replicas
    )
    return replace(fleet, replicas=replicas)


def _lodestar(text: str) -> FleetSpec:
    """Return a pool of Lodestar's evaluation (source [L]): one cluster, engine metrics each 100 ms."""
    return replace(parse_fleet(text), scrape_interval_s=0.1)


LINKS = Regions({"us": {"eu": 70.0, "ap": 140.0}, "eu": {"ap": 211.0}})
#: Three regions with users and a picker each.
THREE_REGIONS = FleetSpec(
    tuple(
        ReplicaSpec(f"{region}-{number}:8000", L40S_X2, NetworkPath(2.0), region)
        for region in LINKS.names
        for number in range(3)
    ),
    regions=LINKS,
)

FLEETS: dict[str, tuple[str, FleetSpec]] = {
    "paper": (
        "the published fleet as calibrated: L40Sx2 in three regions, hybrid caches, 30 % of hits lost",
        calibrated(regional_fleet(L40S_X2)),
    ),
    "paper-exact": (
        "the same with caches that keep every token, as of models without recurrent state",
        regional_fleet(L40S_X2),
    ),
    "paper-h100": ("one H100 in each of the three regions", regional_fleet(H100)),
    # Round trips of open connections behind the published 55, 151 and 244 ms of the H100 regions (source
    # [P]).
    "mixed": ("L40Sx2 near and far, an H100 between", parse_fleet("l40s-x2@20,h100@102,l40s-x2@211")),
    "one-region": ("eight L40Sx2 side by side", parse_fleet("l40s-x2@2*8")),
    "regions": (
        "three L40Sx2 and a picker in each of three regions, 70, 140 and 211 ms apart",
        THREE_REGIONS,
    ),
    "homo": ("seven A30 side by side, 8B model, engine metrics each 100 ms", _lodestar("a30*7")),
    "hetero": ("seven A30 and eight V100 without prefix cache, the same", _lodestar("a30*7,v100*8")),
    "l20-a30": ("seven L20 and eight A30, the same", _lodestar("l20*7,a30*8")),
}


#: Models of fleets of workers, and what serves them.
PD_MODELS = {"8b": H100_8B, "70b": H100_70B}
#: A fleet of prefill and decode workers, or of workers that do both.
PD_NAMES = (
    "pd-MODEL-NpMd-Gg or pd-MODEL-N (MODEL 8b or 70b; N prefill and M decode workers, or N whole; MxR for "
    "pods of R ranks; links of G Gb/s)"
)
_PD = re.compile(r"pd-(8b|70b)-(?:(\d+)(?:x(\d+))?p)?(\d+)(?:x(\d+))?(?:d-(\d+)g)?")


def pd_fleet(
    engine: EngineClass, prefill: int, decode: int, gbps: float, ranks: tuple[int, int] = (1, 1)
) -> FleetSpec:
    """Return pods side by side, half a millisecond away; without any that prefill, all do both.

    Args:
        engine: what each rank is.
        prefill: pods that prefill.
        decode: pods that decode.
        gbps: rate of each pod's link.
        ranks: of each pod that prefills, and that decodes.
    """
    last = Role.DECODE if prefill else Role.WHOLE
    pods = [(Role.PREFILL, number, ranks[0]) for number in range(prefill)]
    pods += [(last, number, ranks[1]) for number in range(decode)]
    return FleetSpec(
        tuple(
            ReplicaSpec(f"{role}-{number}:{8000 + rank}", engine, NetworkPath(0.5), role=role, link_gbps=gbps)
            for role, number, count in pods
            for rank in range(count)
        )
    )


def fleet_named(text: str) -> FleetSpec:
    """Return a named fleet, one of ``class@rtt_ms[*count]`` parts joined by commas, or that of a JSON file.

    Raises:
        EppError: neither a name nor such a line, or the file holds something else.
        OSError: there is no such file.
    """
    if text.endswith(".json"):
        try:
            return msgspec.json.decode(Path(text).read_bytes(), type=FleetSpec)
        except DAMAGED as error:
            raise EppError(f"fleet {text}: {error}") from error
    if text in FLEETS:
        return FLEETS[text][1]
    if found := _PD.fullmatch(text):
        model, prefill, prefill_ranks, decode, decode_ranks, gbps = found.groups()
        ranks = int(prefill_ranks or 1), int(decode_ranks or 1)
        return pd_fleet(PD_MODELS[model], int(prefill or 0), int(decode), float(gbps or inf), ranks)
    try:
        return parse_fleet(text)
    except ValueError as error:
        known = ", ".join((*FLEETS, PD_NAMES))
        raise EppError(f"fleet {text!r}: not one of {known}, and {error}") from error
