"""An endpoint as configured or discovered, and the identity that its signals hang on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: No network takes this long: stated it is a mistake, measured a fault of clock or prober.
MAX_RTT_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica.

    Attributes:
        address: ``host:port`` as Envoy is told it; IPv6 hosts are bracketed.
        tls: whether the upstream speaks TLS.
        server_name: SNI and certificate name, ``""`` for the host itself.
        region: name of its region, ``""`` when unknown.
        engine_class: name of its hardware and engine class, ``""`` when unknown.
        models: public model names that it serves, its adapters' among them; empty means any.
        served_names: public name -> the name under which its engine serves it, where that is another one.
        adapters: those of ``models`` that are LoRA adapters of its base model. They share its KV cache's
            capacity with the base, but no prefix of a prompt.
        context_tokens: longest prompt plus output that it accepts, None when unknown.
        kv_capacity_tokens: size of its KV cache when the operator states it, None to learn it.
        draining: takes no new requests.
        uid: identity beyond the address when the source has one (pod UID), else ``""``.
        labels: free labels, for filters and people.
    """

    address: str
    tls: bool = False
    server_name: str = ""
    region: str = ""
    engine_class: str = ""
    models: frozenset[str] = frozenset()
    served_names: Mapping[str, str] = field(default_factory=dict)
    adapters: frozenset[str] = frozenset()
    context_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    draining: bool = False
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def served_name(self, model: str) -> str:
        """What its engine calls a public model."""
        return self.served_names.get(model, model)
