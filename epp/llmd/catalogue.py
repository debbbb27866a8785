"""llm-d's plugins that have no counterpart here, and what to do instead of each.

Data alone. A plugin that is in neither table, here nor in `plugins`, is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENGINE = "the policy 'llm-d' prices queue, KV cache and prefix; leave the others out"
_LOAD = "name the policy 'gorgo' or 'least-load' as a plugin: both count requests in flight"
_LABELS = "leave it out, and say the pods in the InferencePool's selector"
_DISAGGREGATED = "endpoints that only prefill or only decode are not told apart yet; keep llm-d for them"
_SESSION = "name the policy 'session-affinity' as a plugin"
_LATENCY = "name the policy 'gorgo' as a plugin: it prices milliseconds from rates that it learns"
_SHED = (
    "nothing is queued here: with InferenceObjectives, requests of negative priority get 429 when saturated"
)
_PREFIX = "use prefix-cache-scorer, or name the policy 'gorgo' as a plugin"
_CLUSTERS = "list endpoints of several regions in one endpoints file, priced by their round trip"

#: Plugin type -> what to do instead.
ALTERNATIVES: Mapping[str, str] = {
    "label-selector-filter": _LABELS,
    "by-label": _LABELS,
    "by-label-selector": _LABELS,
    "prefill-filter": _DISAGGREGATED,
    "decode-filter": _DISAGGREGATED,
    "encode-filter": _DISAGGREGATED,
    "disagg-profile-handler": _DISAGGREGATED,
    "pd-profile-handler": _DISAGGREGATED,
    "disagg-headers-handler": _DISAGGREGATED,
    "prefill-header-handler": _DISAGGREGATED,
    "prefix-based-pd-decider": _DISAGGREGATED,
    "always-disagg-pd-decider": _DISAGGREGATED,
    "always-disagg-multimodal-decider": _DISAGGREGATED,
    "disaggregatedset-rollout-screener": _DISAGGREGATED,
    "p2p-source-producer": _DISAGGREGATED,
    "data-parallel-profile-handler": "list the ranks' ports in the InferencePool: each is an endpoint here",
    "header-profile-handler": "run one picker for each profile",
    "session-affinity-filter": _SESSION,
    "session-affinity-scorer": _SESSION,
    "session-id-producer": _SESSION,
    "agent-identity": _SESSION,
    "endpoint-attribute-filter": _ENGINE,
    "endpoint-attribute-scorer": _ENGINE,
    "topology-affinity-filter": "regions bind requests by the key 'regions' of epp-settings",
    "topology-affinity-scorer": "name the policy 'gorgo' as a plugin: it prices round trips",
    "topology-extractor": "regions come from node labels by themselves",
    "utilization-filter": _ENGINE,
    "prefix-cache-affinity-filter": "name the policy 'prefix-threshold' as a plugin",
    "slo-headroom-tier-filter": _LATENCY,
    "latency-scorer": _LATENCY,
    "latency-slo-admitter": _LATENCY,
    "predicted-latency-producer": _LATENCY,
    "context-length-aware": "state context_tokens of endpoints: what does not fit is not sent there",
    "running-requests-size-scorer": _LOAD,
    "load-aware-scorer": _LOAD,
    "active-request-scorer": _LOAD,
    "token-load-scorer": _LOAD,
    "lora-affinity-scorer": "leave it out: adapters are not told apart yet",
    "no-hit-lru-scorer": _PREFIX,
    "precise-prefix-cache-scorer": _PREFIX,
    "precise-prefix-cache-producer": _PREFIX,
    "burst-prefix-cache-producer": _PREFIX,
    "mm-embeddings-cache-scorer": _PREFIX,
    "mm-embeddings-cache-producer": _PREFIX,
    "header-label-affinity-scorer": _LABELS,
    "weighted-random-picker": "use max-score-picker: endpoints within the tie band are drawn among",
    "concurrency-detector": "use utilization-detector",
    "probabilistic-admitter": _SHED,
    "global-strict-fairness-policy": _SHED,
    "round-robin-fairness-policy": _SHED,
    "program-aware-fairness": _SHED,
    "fcfs-ordering-policy": _SHED,
    "edf-ordering-policy": _SHED,
    "slo-deadline-ordering-policy": _SHED,
    "static-usage-limit-policy": _SHED,
    "priority-holdback-policy": _SHED,
    "soft-reflective-ceiling-policy": _SHED,
    "sheddable-eviction-filter": _SHED,
    "priority-then-time-eviction-order-policy": _SHED,
    "models-data-source": "leave it out: models are matched where endpoints state theirs",
    "models-data-extractor": "leave it out: models are matched where endpoints state theirs",
    "dcgm-data-source": "leave it out: no policy reads GPU counters",
    "dcgm-extractor": "leave it out: no policy reads GPU counters",
    "k8s-notification-source": "leave it out: pods are watched anyway",
    "endpoint-notification-source": "leave it out: pods are watched anyway",
    "file-discovery": "use our own configuration: epp serve --config, with pool.file",
    "request-attribute-reporter": "read usage from the metrics page or the flight records",
    "vllmgrpc-parser": "leave it out: what no parser reads passes through, balanced",
    "vertexai-parser": "leave it out: what no parser reads passes through, balanced",
    "multicluster-approx-prefix-cache-producer": _CLUSTERS,
    "multicluster-file-discovery": _CLUSTERS,
    "multicluster-metrics-data-source": _CLUSTERS,
    "multicluster-metrics-extractor": _CLUSTERS,
    "multicluster-queue-scorer": _CLUSTERS,
    "multicluster-session-affinity-filter": _CLUSTERS,
    "multicluster-kv-cache-utilization-scorer": _CLUSTERS,
    "multicluster-prefix-cache-scorer": _CLUSTERS,
}
