"""llm-d's plugins that are not part of a profile here: what stands for each, or what to do instead.

Data alone. A plugin that is in no table, here or in `plugins`, is unknown.
"""

from __future__ import annotations

STAGES = "an endpoint serves a request alone here; keep llm-d for prefill, decode and encode endpoints"
#: What to do instead -> plugin types that are refused.
INSTEAD = {
    STAGES: """
        always-disagg-multimodal-decider always-disagg-pd-decider disagg-headers-handler
        disagg-profile-handler disaggregatedset-rollout-screener mm-embeddings-cache-producer
        mm-embeddings-cache-scorer pd-profile-handler prefill-header-handler prefix-based-pd-decider
    """,
    "name label-selector-filter, decode-filter or prefill-filter": """
        by-label by-label-selector
    """,
    "state context_tokens of endpoints: what does not fit is not sent there": """
        context-length-aware
    """,
    "list endpoints of several regions in one endpoints file, priced by their round trip": """
        multicluster-approx-prefix-cache-producer multicluster-file-discovery
        multicluster-kv-cache-utilization-scorer multicluster-metrics-data-source
        multicluster-metrics-extractor multicluster-prefix-cache-scorer multicluster-queue-scorer
        multicluster-session-affinity-filter
    """,
}
#: Plugin type -> what to do instead.
ALTERNATIVES = {kind: instead for instead, kinds in INSTEAD.items() for kind in kinds.split()}

_INDEX = "the prefix index here: it follows what is sent and what engines report; no KV events are read"
_WATCHED = "pods are watched anyway"
_MODELS = "models are matched where endpoints state theirs"
_UNREAD = "what it parses passes through unread, balanced among the endpoints"
#: Plugin type -> what stands for it here, and its parameters, which are taken and say nothing more.
STAND_INS = {
    "precise-prefix-cache-producer": (
        _INDEX,
        "tokenProcessorConfig indexerConfig kvEventsConfig speculativeIndexing speculativeTTL",
    ),
    "burst-prefix-cache-producer": (
        _INDEX,
        (
            "windowDurationMs maxPerReplica blockSizeTokens maxPrefixTokensToMatch minColocateBlocks"
            " maxBatchSize balanceBy"
        ),
    ),
    "endpoint-notification-source": (_WATCHED, ""),
    "k8s-notification-source": (_WATCHED, "group version kind"),
    "models-data-source": (
        _MODELS,
        "scheme path insecureSkipVerify caCertPath clientCertPath clientKeyPath interval",
    ),
    "models-data-extractor": (_MODELS, ""),
    "data-parallel-profile-handler": (
        "the destination is the rank's own port, as with the handler that replaces it in llm-d",
        "primaryPort",
    ),
    "vertexai-parser": (_UNREAD, ""),
    "vllmgrpc-parser": (_UNREAD, ""),
    "request-attribute-reporter": (
        "usage is in the metrics and the flight records; the gateway is sent no attribute",
        "attributes",
    ),
    "topology-extractor": (
        "nothing asks for topology where no prefill endpoint is picked",
        "hostname rack zone region",
    ),
    "agent-identity": ("sessions can be named by it; of queues it names none", "additionalSessionHeaders"),
}

#: Plugins of flow control: refused with its feature gate, without effect without it, as in llm-d.
FLOW_CONTROL = frozenset(
    [
        "edf-ordering-policy",
        "fcfs-ordering-policy",
        "global-strict-fairness-policy",
        "priority-holdback-policy",
        "priority-then-time-eviction-order-policy",
        "program-aware-fairness",
        "round-robin-fairness-policy",
        "sheddable-eviction-filter",
        "slo-deadline-ordering-policy",
        "soft-reflective-ceiling-policy",
        "static-usage-limit-policy",
    ]
)
