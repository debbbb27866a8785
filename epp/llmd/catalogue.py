"""llm-d's plugins that have no counterpart here, and what to do instead of each.

Data alone. A plugin that is in neither table, here nor in `plugins`, is unknown.
"""

from __future__ import annotations

#: What to do instead -> plugin types.
INSTEAD = {
    "leave it out, and say the pods in the InferencePool's selector": """
        by-label by-label-selector header-label-affinity-scorer label-selector-filter
    """,
    "endpoints that only prefill or only decode are not distinguished yet; keep llm-d for them": """
        always-disagg-multimodal-decider always-disagg-pd-decider decode-filter disagg-headers-handler
        disagg-profile-handler disaggregatedset-rollout-screener encode-filter p2p-source-producer
        pd-profile-handler prefill-filter prefill-header-handler prefix-based-pd-decider
    """,
    "list the ranks' ports in the InferencePool: each is an endpoint here": """
        data-parallel-profile-handler
    """,
    "run one picker for each profile": """
        header-profile-handler
    """,
    "name the policy 'session-affinity' as a plugin": """
        agent-identity session-affinity-filter session-affinity-scorer session-id-producer
    """,
    "the policy 'llm-d' prices queue, KV cache and prefix; leave the others out": """
        endpoint-attribute-filter endpoint-attribute-scorer utilization-filter
    """,
    "regions bind requests by the key 'regions' of epp-settings": """
        topology-affinity-filter
    """,
    "name the policy 'gorgo' as a plugin: it prices round trips": """
        topology-affinity-scorer
    """,
    "regions come from node labels by themselves": """
        topology-extractor
    """,
    "name the policy 'prefix-threshold' as a plugin": """
        prefix-cache-affinity-filter
    """,
    "name the policy 'gorgo' as a plugin: it prices milliseconds from rates that it learns": """
        latency-scorer latency-slo-admitter predicted-latency-producer slo-headroom-tier-filter
    """,
    "state context_tokens of endpoints: what does not fit is not sent there": """
        context-length-aware
    """,
    "name the policy 'gorgo' or 'least-load' as a plugin: both count requests in flight": """
        active-request-scorer running-requests-size-scorer token-load-scorer
    """,
    "leave it out: adapters are not distinguished yet": """
        lora-affinity-scorer
    """,
    "use prefix-cache-scorer, or name the policy 'gorgo' as a plugin": """
        burst-prefix-cache-producer mm-embeddings-cache-producer mm-embeddings-cache-scorer
        no-hit-lru-scorer precise-prefix-cache-producer precise-prefix-cache-scorer
    """,
    "use max-score-picker: endpoints within the tie band are drawn among": """
        weighted-random-picker
    """,
    "use utilization-detector": """
        concurrency-detector
    """,
    "nothing is queued here: requests of negative priority get 429 when saturated": """
        edf-ordering-policy fcfs-ordering-policy global-strict-fairness-policy priority-holdback-policy
        priority-then-time-eviction-order-policy probabilistic-admitter program-aware-fairness
        round-robin-fairness-policy sheddable-eviction-filter slo-deadline-ordering-policy
        soft-reflective-ceiling-policy static-usage-limit-policy
    """,
    "leave it out: models are matched where endpoints state theirs": """
        models-data-extractor models-data-source
    """,
    "leave it out: no policy reads GPU counters": """
        dcgm-data-source dcgm-extractor
    """,
    "leave it out: pods are watched anyway": """
        endpoint-notification-source k8s-notification-source
    """,
    "use our own configuration: epp serve --config, with pool.file": """
        file-discovery
    """,
    "read usage from the metrics page or the flight records": """
        request-attribute-reporter
    """,
    "leave it out: what no parser reads passes through, balanced": """
        vertexai-parser vllmgrpc-parser
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
