"""llm-d's flow control: what its section and its policies mean in our section `queue`. Source [E].

Its dispatch is kept: while the pool's saturation is below a priority's limit the first request is scheduled
as if it had just come. So no request waits for the engine that serves it best (`patience`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.config.section import MOST
from epp.llmd.flags import duration_s, quantity_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.picker_config import EndpointPickerConfig, FlowControl, PriorityBand

#: Policy -> what differs here.
_DIFFERS = {
    "program-aware-fairness": "tokens count when a request is sent, those of the answer as expected",
    "round-robin-fairness-policy": "in a round, requests without x-llm-d-inference-fairness-id come first",
    "slo-deadline-ordering-policy": "nobody is dropped for a deadline",
    "vtc-fairness-policy": "a turn costs the tokens of the prompt and of the expected answer alike",
}
#: Names of llm-d's, and ours of the same rule.
_OURS = {"vtc": "tokens"}
#: What no time to live means here: Envoy is asked for so much.
_A_DAY_S = 86_400.0


def said_by(kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy says, of a band or of the limits: its name is the value there, too."""
    name, _, key = kind.removesuffix("-policy").rpartition("-")
    key, name = (key, name) if key in ("fairness", "ordering") else ("policy", f"{name}-{key}")
    strategy = parameters.pop("strategy", "")
    return {**parameters, key: strategy if strategy == "turn-priority" else _OURS.get(name, name)}


def notes_on(config: EndpointPickerConfig) -> list[str]:
    """Tell what of flow control means something else here."""
    named = {plugin.type for plugin in config.plugins}
    notes = [f"{name}: {words}" for name, words in _DIFFERS.items() if name in named]
    flow = config.flow_control
    bands = (flow, flow.default_priority_band, flow.default_negative_priority_band, *flow.priority_bands)
    bound = any(each is not None and (each.max_requests or each.max_bytes) for each in bands)
    words = "flowControl maxRequests, maxBytes: a request that need not wait is never refused by them"
    return [*notes, words] if bound else notes


def queue_of(flow: FlowControl, made: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a section.

    Args:
        flow: the section.
        made: what the plugins say, by name.

    Raises:
        ValueError: something is not as llm-d wants it, or has no counterpart.
    """

    def policy(name: str, key: str) -> dict[str, Any]:
        said = made.get(name)
        if not isinstance(said, dict) or key not in said:
            raise ValueError(f"no {key} plugin is named {name!r}")
        return said

    def count(text: int | str, default: float) -> float:
        return quantity_bytes(str(text)) if str(text) != "0" else default

    def ttl_s(text: str) -> float:
        return duration_s(text or flow.default_request_ttl) or _A_DAY_S

    def band(its: PriorityBand) -> dict[str, Any]:
        return {
            **policy(its.fairness_policy_ref, "fairness"),
            **policy(its.ordering_policy_ref, "ordering"),
            "max_requests": count(its.max_requests, 5000),
            "max_bytes": count(its.max_bytes, 10**9),
            "ttl_s": ttl_s(its.default_request_ttl),
        }

    if flow.enable_eviction:
        raise ValueError("enableEviction: requests that run are not evicted here; leave it out")
    return {
        "enabled": True,
        "full_duplex": True,  # as gateways ask
        "patience": 0.0,
        "empty_ttl_s": ttl_s(flow.no_endpoint_request_ttl),
        "total_requests": count(flow.max_requests, MOST),
        "total_bytes": count(flow.max_bytes, MOST),
        **band(flow.default_priority_band),
        "bands": [{"priority": each.priority, **band(each)} for each in flow.priority_bands],
        "negative": band(flow.default_negative_priority_band or flow.default_priority_band),
        "limits": policy(flow.usage_limit_policy_plugin_ref, "policy"),
    }
