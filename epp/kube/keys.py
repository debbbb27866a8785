"""Annotations and labels that describe an endpoint as the endpoints file would: same names, one prefix.

``gorgo-epp/region``, ``gorgo-epp/engine-class`` and so on, on the pod; an annotation goes before a label.
Values that labels cannot hold (model names with slashes, lists) are annotations. A value that cannot be used
is reported and counts as absent: one pod's typing error must not cost the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.pool import Rtt, Tokens, misnamed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.kube.objects import Meta

PREFIX = "gorgo-epp/"
#: Ports of the pool that a pod really serves on, as a comma list; the newer name first. Source [E].
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")


#: Key after the prefix -> type of the field of `EndpointSpec` that is spelled like it.
_FIELDS: Mapping[str, Any] = {
    "models": list,
    "adapters": list,
    "context-tokens": Tokens,
    "kv-capacity-tokens": Tokens,
    "rtt-ms": Rtt,
    "draining": bool,
    "tls": bool,
    "server-name": str,
}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def stated(meta: Meta, problems: list[str]) -> dict[str, Any]:
    """Fields of `EndpointSpec` that a pod states; what cannot be used is added to ``problems``."""
    fields: dict[str, Any] = {}
    for key, kind in _FIELDS.items():
        text = first([meta.annotations, meta.labels], [PREFIX + key])
        if not text:
            continue
        try:
            value = _names(text) if kind is list else msgspec.convert(text.strip(), kind, strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"pod {meta.name}: {PREFIX}{key}: {text!r}: {error}; it is left out")
        else:
            fields[key.replace("-", "_")] = value
    if wrong := misnamed(fields.get("models", []), fields.get("adapters", [])):
        key, problem, fix = wrong
        problems.append(f"pod {meta.name}: {PREFIX}{key}: {problem} ({fix}); its names are left out")
        for key in ("models", "adapters"):
            fields.pop(key, None)
    return fields


def first(places: Iterable[Mapping[str, str] | None], keys: Iterable[str]) -> str:
    """The first non-empty value, ``""`` when there is none: all places for one key, then for the next."""
    places = list(places)
    return next(
        (value for key in keys if key for place in places if place and (value := place.get(key, ""))), ""
    )


def active_ports(meta: Meta, ports: tuple[int, ...], problems: list[str]) -> tuple[int, ...]:
    """Those of the pool's ports that the pod serves on: all unless its annotation names some."""
    annotations = meta.annotations or {}
    key = next((key for key in ACTIVE_PORTS if key in annotations), None)
    if key is None:
        return ports
    named = _names(annotations[key])
    known = {str(port): port for port in ports}
    if odd := [text for text in named if text not in known]:
        problems.append(f"pod {meta.name}: {key}: {', '.join(odd)} is none of the pool's ports {list(ports)}")
    return tuple(port for text, port in known.items() if text in named)
