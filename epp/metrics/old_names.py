"""Names that llm-d's metrics had before, and their labels then: `protocol.old_metric_names` shows both.

Source: ``metrics.go`` and the plugins of llm-d/llm-d-router at ebab687, which write both.
"""

from __future__ import annotations

from typing import NamedTuple


class OldName(NamedTuple):
    """One old name.

    Attributes:
        name: it.
        labels: its labels.
        sources: the labels of today that they have the values of.
    """

    name: str
    labels: tuple[str, ...]
    sources: tuple[str, ...]


def _old(name: str, labels: str) -> OldName:
    """Read ``label`` or ``label=label-of-today`` by spaces."""
    pairs = [each.partition("=") for each in labels.split()]
    return OldName(name, tuple(old for old, _, _ in pairs), tuple(now or old for old, _, now in pairs))


_M = "model_name target_model_name"
_ENDPOINT = "pod_name=endpoint_name namespace port"
_QUEUED = f"fairness_id priority inference_pool {_M}"
_STAGES = "model_name decision_type"
#: Name of today without ``llm_d_epp_`` -> prefix of old, name of old where it differs, labels of old.
_TABLE = f"""
request_total|inference_objective||{_M} priority
request_error_total|inference_objective||{_M} error_code
request_duration_seconds|inference_objective||{_M}
request_size_bytes|inference_objective|request_sizes|{_M}
response_size_bytes|inference_objective|response_sizes|{_M}
request_input_tokens|inference_objective|input_tokens|{_M}
request_output_tokens|inference_objective|output_tokens|{_M}
request_cached_tokens|inference_objective|prompt_cached_tokens|{_M}
request_running|inference_objective|running_requests|model_name
request_ntpot_seconds|inference_objective|normalized_time_per_output_token_seconds|{_M}
request_ttft_seconds|inference_objective||{_M}
request_streaming_tpot_seconds|inference_objective|request_tpot_seconds|{_M}
request_predicted_ttft_seconds|inference_objective||{_M}
request_predicted_tpot_seconds|inference_objective||{_M}
request_slo_violation_total|inference_objective||{_M} type
inference_request_metric|inference_objective||{_M} type
average_kv_cache_utilization|inference_pool||name
average_queue_size|inference_pool||name
average_running_requests|inference_pool||name
ready_endpoints|inference_pool|ready_pods|name
per_endpoint_queue_size|inference_pool|per_pod_queue_size|name model_server_pod=model_server_endpoint
scheduler_e2e_duration_seconds|inference_extension||
plugin_duration_seconds|inference_extension||extension_point plugin_type plugin_name
scheduler_attempts_total|inference_extension||status target_model_name {_ENDPOINT}
info|inference_extension||commit build_ref
model_rewrite_decisions_total|inference_extension||model_rewrite_name model_name target_model
flow_control_request_queue_duration_seconds|inference_extension||{_QUEUED} outcome
flow_control_dispatch_cycle_duration_seconds|inference_extension||
flow_control_request_enqueue_duration_seconds|inference_extension||fairness_id priority outcome
flow_control_queue_size|inference_extension||{_QUEUED}
flow_control_queue_bytes|inference_extension||{_QUEUED}
flow_control_pool_saturation|inference_extension||inference_pool stage
prefix_indexer_size|inference_extension||
prefix_indexer_hit_ratio|inference_extension||
prefix_indexer_hit_bytes|inference_extension||
disagg_decision_total|llm_d_inference_scheduler||{_STAGES}
pd_decision_total|llm_d_inference_scheduler||{_STAGES}
datalayer_poll_errors_total|llm_d_inference_scheduler||source_type
datalayer_extract_errors_total|llm_d_inference_scheduler||source_type extractor_type
kv_cache_index_admissions_total|kvcache_index|admissions_total|
kv_cache_index_evictions_total|kvcache_index|evictions_total|
kv_cache_index_lookup_requests_total|kvcache_index|lookup_requests_total|
kv_cache_index_lookup_hits_total|kvcache_index|lookup_hits_total|
kv_cache_index_max_pod_hit_count_total|kvcache_index|max_pod_hit_count_total|
kv_cache_events_dedup_removed_hashes_suppressed_total|kvcache_kvevents|dedup_removed_hashes_suppressed_total|
kv_cache_events_dedup_removed_hashes_forwarded_total|kvcache_kvevents|dedup_removed_hashes_forwarded_total|
"""


def _read() -> dict[str, OldName]:
    found = {}
    for line in _TABLE.split("\n")[1:-1]:
        now, prefix, old, labels = line.split("|")
        found[f"llm_d_epp_{now}"] = _old(f"{prefix}_{old or now}", labels)
    return found


#: Old name by today's.
OLD_NAMES: dict[str, OldName] = _read()
