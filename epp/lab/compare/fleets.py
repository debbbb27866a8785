"""Simulated fleets by name, by a line of text, or from a YAML file.

Owns the named fleets and the file's schema. Opens no files: text comes in.

A file lists replicas::

    replicas:
      - engine_class: l40s-x2
        rtt_ms: 20
        region: us-ashburn
        count: 2              # 1 when left out
        lost_hit_share: 0.3   # share of requests that find nothing in the cache, 0 when left out
"""

from __future__ import annotations

from dataclasses import replace

from epp.config.section import NotNegative, PositiveInt, Section
from epp.config.strict import decode
from epp.errors import ConfigError, EppError
from epp.lab.sim.engine_class import ENGINE_CLASSES, H100, L40S_X2
from epp.lab.sim.network import NetworkPath
from epp.lab.sim.scenario import FleetSpec, ReplicaSpec, parse_fleet, regional_fleet

#: Warm round trips behind the published 55, 151 and 244 ms of the H100 regions (source [P]).
_MIXED = "l40s-x2@20,h100@102,l40s-x2@211"


#: Share of requests that find nothing although it should be there; fitted (docs/simulator.md, calibration).
CALIBRATED_LOST_HITS = 0.3


def calibrated(fleet: FleetSpec) -> FleetSpec:
    """The same fleet with each L40Sx2 as calibrated.

    It takes prefixes up at checkpoints only, and every replica loses hits besides; the picker knows neither.
    """
    hybrid = ENGINE_CLASSES["l40s-x2-hybrid"]
    replicas = []
    for spec in fleet.replicas:
        told = spec.known_as or spec.engine_class.name
        cls = hybrid if spec.engine_class is L40S_X2 else spec.engine_class
        replicas.append(replace(spec, engine_class=cls, known_as=told, lost_hit_share=CALIBRATED_LOST_HITS))
    return replace(fleet, replicas=tuple(replicas))


def _lodestar(text: str) -> FleetSpec:
    """A pool of Lodestar's evaluation (source [L]): one cluster, engine metrics each 100 ms."""
    return replace(parse_fleet(text), scrape_interval_s=0.1)


def _named() -> dict[str, tuple[str, FleetSpec]]:
    return {
        "paper": (
            "the published fleet as calibrated: L40Sx2 in three regions, hybrid caches, 30 % of hits lost",
            calibrated(regional_fleet(L40S_X2)),
        ),
        "paper-exact": (
            "the same with caches that keep every token, as of models without recurrent state",
            regional_fleet(L40S_X2),
        ),
        "paper-h100": ("one H100 in each of the three regions", regional_fleet(H100)),
        "mixed": ("L40Sx2 near and far, an H100 between", parse_fleet(_MIXED)),
        "one-region": ("eight L40Sx2 side by side", parse_fleet("l40s-x2@2*8")),
        "homo": ("seven A30 side by side, 8B model, engine metrics each 100 ms", _lodestar("a30*7")),
        "hetero": (
            "seven A30 and eight V100 without prefix cache, the same",
            _lodestar("a30*7,v100*8"),
        ),
        "l20-a30": ("seven L20 and eight A30, the same", _lodestar("l20*7,a30*8")),
        "six": ("two L40Sx2 in each region", parse_fleet("l40s-x2@20*2,l40s-x2@102*2,l40s-x2@211*2")),
    }


FLEETS = _named()


class _Replica(Section, frozen=True):
    engine_class: str
    rtt_ms: NotNegative = 0.0
    region: str = ""
    count: PositiveInt = 1
    lost_hit_share: NotNegative = 0.0


class _FleetFile(Section, frozen=True):
    replicas: list[_Replica]


def fleet_from_text(text: str) -> FleetSpec:
    """A named fleet, or ``class@rtt_ms[*count]`` parts joined by commas.

    Raises:
        EppError: neither a name nor such a line.
    """
    if text in FLEETS:
        return FLEETS[text][1]
    try:
        return parse_fleet(text)
    except ValueError as error:
        raise EppError(f"fleet {text!r}: not one of {', '.join(FLEETS)}, and {error}") from error


def fleet_from_yaml(text: str, source: str) -> FleetSpec:
    """A fleet from the text of a file; see the module for its form.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    specs: list[ReplicaSpec] = []
    for number, entry in enumerate(decode(text, _FleetFile, source).replicas):
        key = f"replicas[{number}]"
        cls = ENGINE_CLASSES.get(entry.engine_class)
        if cls is None:
            known = "one of: " + ", ".join(sorted(ENGINE_CLASSES))
            raise ConfigError(source, f"{key}.engine_class", f"unknown class {entry.engine_class!r}", known)
        region = entry.region or f"rtt-{entry.rtt_ms:g}ms"
        try:
            specs += [
                ReplicaSpec(
                    f"{region}-{len(specs) + i + 1}:8000",
                    cls,
                    NetworkPath(entry.rtt_ms),
                    region,
                    lost_hit_share=entry.lost_hit_share,
                )
                for i in range(entry.count)
            ]
        except ValueError as error:
            raise ConfigError(source, key, str(error)) from error
    if not specs:
        raise ConfigError(source, "replicas", "a fleet needs at least one replica")
    return FleetSpec(tuple(specs))


def with_lost_hits(fleet: FleetSpec, share: float) -> FleetSpec:
    """The same fleet where each replica's cache loses that share of hits."""
    return replace(fleet, replicas=tuple(replace(r, lost_hit_share=share) for r in fleet.replicas))
