"""Annotations and labels that tell of an endpoint what the endpoints file would: same names, one prefix.

``gorgo-epp/region``, ``gorgo-epp/engine-class`` and so on, on the pod; an annotation goes before a label.
Values that labels cannot hold (model names with slashes, lists) are annotations. A value that cannot be used
is told and counts as absent: one pod's typing error must not cost the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.pool import MOST_RTT_MS, MOST_TOKENS, Rtt, Tokens, misnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from epp.kube.objects import Meta

PREFIX = "gorgo-epp/"
#: Ports of the pool that a pod really serves on, as a comma list; the newer name first. Source [E].
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("is neither 'true' nor 'false'")
    return text.lower() == "true"


def _tokens(text: str) -> int:
    tokens: int = _number(text, Tokens, f"is not a whole number from 1 to {MOST_TOKENS}")
    return tokens


def _port(text: str) -> int | None:
    """None for what is no port: of thousands of digits `int` would raise."""
    return int(text) if text.isdecimal() and len(text) <= len("65535") else None


def _milliseconds(text: str) -> float:
    rtt_ms: float = _number(text, Rtt, f"is not a number of milliseconds from 0 to {MOST_RTT_MS:g}")
    return rtt_ms


def _number(text: str, kind: Any, problem: str) -> Any:
    """A number as the endpoints file takes it."""
    try:
        return msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError:
        raise ValueError(problem) from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


#: Key after the prefix to field of `EndpointSpec` and reader of the text.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "models": ("models", _names),
    "adapters": ("adapters", _names),
    "context-tokens": ("context_tokens", _tokens),
    "kv-capacity-tokens": ("kv_capacity_tokens", _tokens),
    "rtt-ms": ("rtt_ms", _milliseconds),
    "draining": ("draining", _truth),
    "tls": ("tls", _truth),
    "server-name": ("server_name", str),
}


def stated(meta: Meta, problems: list[str]) -> dict[str, Any]:
    """Fields of `EndpointSpec` that a pod states; what cannot be used is added to ``problems``."""
    fields: dict[str, Any] = {}
    for key, (field, read) in _FIELDS.items():
        text = first([meta.annotations, meta.labels], [PREFIX + key])
        if not text:
            continue
        try:
            fields[field] = read(text)
        except ValueError as error:
            problems.append(f"pod {meta.name}: {PREFIX}{key}: {text!r} {error}; it is left out")
    while wrong := misnamed(fields.get("models", []), fields.get("adapters", [])):
        problems.append(
            f"pod {meta.name}: {PREFIX}{wrong.key}: {wrong.problem} ({wrong.fix}); it is left out"
        )
        if wrong.name is None:
            del fields[wrong.key]
        else:
            fields[wrong.key].remove(wrong.name)
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
    named = [part.strip() for part in annotations[key].split(",") if part.strip()]
    odd = [part for part in named if _port(part) not in ports]
    if odd:
        problems.append(f"pod {meta.name}: {key}: {', '.join(odd)} is none of the pool's ports {list(ports)}")
    active = {_port(part) for part in named}
    return tuple(port for port in ports if port in active)
