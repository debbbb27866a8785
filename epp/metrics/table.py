"""Every metric of the picker: its name, kind, labels and meaning, and where its value is read from.

Owns the names. A row with a ``read`` is asked when Prometheus asks; the others are counted into by
`epp.metrics.metrics.Metrics`. Names that begin with ``llm_d_epp_`` are llm-d's and mean what they mean there.

Labels are bounded: names from the configuration, from closed enumerations, endpoint addresses of the pool,
whose series go when the endpoint goes, and a capped number of model names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.metrics import read
from epp.metrics.metrics import Row, counter, gauge, histogram, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.cluster.link import Link
    from epp.feeds.kv_events import KvEventFeed
    from epp.metrics.metrics import Samples
    from epp.metrics.read import PickerState, QueueState

#: Why tokens were estimated: no thread was free, none was done in time, the chat template refused or there is
#: none, the prompt is no chat and no text, the tokenizer failed.
REASONS = ("busy", "late", "template", "content", "error")
#: Labels of a request.
R = "model_name target_model_name fairness_id priority"
_MODELS = "plugin_name plugin_type model_name target_model_name"
_STAGES = "plugin_name plugin_type model_name decision_type"
_CACHE = "plugin_type plugin_name"
_QUEUED = "fairness_id priority model_name target_model_name inference_pool"
_LOAD = "endpoint_name namespace producer_name fairness_id priority"

# Buckets as llm-d has them (source [E]), the token typo put right.
_DURATION_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
    120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_TTFT_S = _DURATION_S[: _DURATION_S.index(120) + 1]
_QUEUE_S = (1e-4, 5e-4, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.6, 0.8, 1, 1.5, 2,
)  # fmt: skip
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_INPUT_TOKENS = (1, *(8 << power for power in range(18)))
_OUTPUT_TOKENS = (1, *(8 << power for power in range(11)))
_BYTES = tuple(64 << power for power in range(25))
_ANSWER_BYTES = (1, *(8 << power for power in range(14)))
_HIT_BYTES = (0, *(16 << power for power in range(13)))
_HANDLED_S = (1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_PICK_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0)
_TTFT_RATIO = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 10)

#: llm-d's times begin where its picker receives a request, which is just after it came to Envoy.
_SINCE = "From its arrival at Envoy, or from the decision where Envoy tells no times,"


def _of_events(name: str, labels: str, text: str, how: Callable[[KvEventFeed], Samples]) -> Row:
    return shown("kv events", name, labels, text, how)


def _blocks(what: str) -> Callable[[KvEventFeed], Samples]:
    return read.one(lambda feed: feed.blocks[what])


def _of_picker(name: str, labels: str, text: str, how: Callable[[PickerState], Samples]) -> Row:
    return shown("picker", name, labels, text, how)


def _of_queue(name: str, labels: str, text: str, how: Callable[[QueueState], Samples]) -> Row:
    return shown("queue", name, labels, text, how)


def _of_peers(name: str, labels: str, text: str, how: Callable[[Link], Samples]) -> Row:
    return shown("peers", name, labels, text, how)


_REQUEST = "llm_d_epp_request_{}".format
TABLE: tuple[Row, ...] = (
    # Requests, llm-d's names.
    counter(_REQUEST("total"), R, "Requests, refused ones included."),
    counter(_REQUEST("error_total"), f"{R} error_code", "Requests that failed, by error."),
    gauge(_REQUEST("running"), R, "Requests decided and not ended."),
    histogram(_REQUEST("size_bytes"), R, "Bytes of the request body.", _BYTES),
    histogram(_REQUEST("duration_seconds"), R, f"{_SINCE} to the request's end.", _DURATION_S),
    histogram(_REQUEST("ttft_seconds"), f"{R} streaming", f"{_SINCE} to the first token.", _TTFT_S),
    histogram("llm_d_epp_response_size_bytes", R, "Bytes of the answer's body, where told.", _ANSWER_BYTES),
    histogram(
        _REQUEST("input_tokens"),
        R,
        "Prompt tokens: the engine's count, or the picker's where the engine reports none.",
        _INPUT_TOKENS,
    ),
    histogram(_REQUEST("output_tokens"), R, "Answer tokens, where reported.", _OUTPUT_TOKENS),
    histogram(
        _REQUEST("cached_tokens"), R, "Prompt tokens that the engine reports as cached.", _INPUT_TOKENS
    ),
    histogram(_REQUEST("ntpot_seconds"), R, "Duration per answer token, prefill included.", _PER_TOKEN_S),
    histogram(_REQUEST("streaming_tpot_seconds"), R, "Time per answer token after the first.", _TOKEN_S),
    histogram(
        _REQUEST("streaming_itl_seconds"),
        R,
        "Mean time between the tokens of a streamed answer, one observation a request.",
        _TOKEN_S,
    ),
    histogram(
        _REQUEST("processing_duration_seconds"),
        "",
        "Time from the whole request to the decision, less its wait for room: parse, count, price, reserve.",
        _PICK_S,
    ),
    histogram(
        "llm_d_epp_scheduler_e2e_duration_seconds",
        "",
        "Time to filter, price, draw and reserve.",
        _PICK_S[:-2],
    ),
    histogram(
        "llm_d_epp_plugin_duration_seconds",
        "extension_point plugin_type plugin_name",
        "Time to decide, by policy: filters, scorers and picker are one computation.",
        _PICK_S[:-2],
    ),
    counter(
        "llm_d_epp_scheduler_attempts_total",
        "status target_model_name endpoint_name namespace port",
        "Requests scheduled, by the chosen endpoint.",
    ),
    histogram(
        "llm_d_epp_prefix_indexer_hit_ratio",
        "plugin_name plugin_type",
        "Share of the prompt that the prefix index expects in the cache of the chosen endpoint.",
        _SHARES,
    ),
    histogram(
        "llm_d_epp_prefix_indexer_hit_bytes",
        "plugin_name plugin_type",
        "Bytes of the prompt expected in the chosen endpoint's cache, four a token.",
        _HIT_BYTES,
    ),
    histogram(
        "llm_d_epp_response_processing_duration_seconds",
        "",
        "Time to handle an answer's messages, where Envoy shows the picker the answer.",
        _HANDLED_S,
    ),
    histogram(_REQUEST("predicted_ttft_seconds"), _MODELS, "Predicted time to first token.", _DURATION_S),
    histogram(
        _REQUEST("predicted_tpot_seconds"), _MODELS, "Predicted time per token after the first.", _TOKEN_S
    ),
    gauge(
        "llm_d_epp_inference_request_metric",
        f"{_MODELS} type",
        "The last request's ttft, tpot, predicted_ttft and predicted_tpot in seconds, and 1 in"
        " ttft_slo_violation and tpot_slo_violation where it missed its objective.",
    ),
    counter(
        _REQUEST("slo_violation_total"),
        f"{_MODELS} type",
        "Requests that missed the objective of their header (ttft, tpot), where a plugin reads it.",
    ),
    counter(
        "llm_d_epp_disagg_decision_total",
        _STAGES,
        "Requests by the stages that separate workers do, where the policy has stages.",
    ),
    counter("llm_d_epp_pd_decision_total", _STAGES, "Requests by whether a separate worker prefills."),
    counter(
        "llm_d_epp_encoder_cache_queries_total",
        f"{_CACHE} modality",
        "Media that requests name, where `mm-embeddings-cache-scorer` stands; modalities are not told apart.",
    ),
    counter(
        "llm_d_epp_encoder_cache_hits_total",
        f"{_CACHE} pod modality",
        "Media of requests that an endpoint is known to hold.",
    ),
    histogram(
        "llm_d_epp_encoder_cache_hit_ratio",
        _CACHE,
        "Share of a request's media that an endpoint holds, once for each candidate.",
        (0.0, *_SHARES),
    ),
    counter("llm_d_epp_kv_cache_index_lookup_requests_total", "", "Prompts looked up in the prefix index."),
    counter(
        "llm_d_epp_kv_cache_index_lookup_hits_total",
        "",
        "Blocks of them that the endpoint with the most is expected to hold.",
    ),
    counter(
        "llm_d_epp_kv_cache_index_max_pod_hit_count_total",
        "",
        "Equal to llm_d_epp_kv_cache_index_lookup_hits_total.",
    ),
    counter(
        "llm_d_epp_datalayer_poll_errors_total", "source_type", "Scrapes of endpoints that were not answered."
    ),
    counter(
        "llm_d_epp_datalayer_extract_errors_total",
        "source_type extractor_type",
        "Answers to scrapes that hold no metrics of an engine or a GPU.",
    ),
    counter(
        "llm_d_epp_model_rewrite_decisions_total",
        "model_rewrite_name model_name target_model",
        "Requests that an InferenceModelRewrite gave a model, by its name.",
    ),
    # Requests, ours.
    counter(
        "epp_decisions_total",
        "policy basis arm",
        "Requests given an endpoint, by policy, by what the decision rests on, and by arm of a trial.",
    ),
    counter(
        "epp_outcomes_total",
        "endpoint cause status",
        "Requests ended, by endpoint, cause and class of the status.",
    ),
    counter(
        "epp_refusals_total",
        "status rule",
        "Requests answered with an error, by status and rule.",
        "429 queue-full,429 queue-ttl,429 queue-deadline,503 pool-empty",
    ),
    counter(
        "epp_usage_total",
        "known",
        "Requests ended, by what the engine reported of their tokens; refused: counts that cannot be.",
        "cached_tokens,tokens,nothing,refused",
    ),
    counter(
        "epp_cache_tokens_total",
        "kind",
        "Tokens of prompts whose engine reported its cache: all, expected cached, reported cached.",
        "prompt,expected,reported",
    ),
    counter(
        "epp_compressed_answers_total",
        "",
        "Answers whose usage could not be read because they were compressed.",
    ),
    histogram(
        "epp_ttft_prediction_ratio",
        "",
        "TTFT observed over the TTFT predicted from round trip, uncached tokens ahead and learned rates.",
        _TTFT_RATIO,
    ),
    _of_picker(
        "epp_requests_in_flight",
        "",
        "Requests decided and not ended.",
        read.one(lambda s: s.scheduler.in_flight),
    ),
    counter(
        "epp_leases_lost_total",
        "reason",
        "Requests whose end was never reported: expired after half an hour.",
        "expired",
    ),
    counter(
        "epp_picks_not_honoured_total",
        "",
        "Picks whose first attempt Envoy made elsewhere: its cluster did not hold the endpoint.",
    ),
    counter(
        "epp_token_estimates_total",
        "reason",
        "Prompts whose tokens were estimated though their model has a tokenizer, by reason.",
        ",".join(REASONS),
    ),
    # What engines tell of their KV caches, where it is listened to.
    _of_events(
        "epp_kv_event_messages_total",
        "result",
        "Messages of engines about their KV caches: taken; lost (never came, no replay had them); replayed;"
        " unreadable (events of an unknown kind, too); unknown-endpoint (of nobody in the pool); dropped"
        " (more than could be applied).",
        lambda feed: [((result,), float(count)) for result, count in feed.results.items()],
    ),
    _of_events(
        "epp_kv_event_refused_blocks_total",
        "reason",
        "Blocks that were not taken: unknown-parent (the block before was never told of); full"
        " (kv_events.max_blocks); small (fewer than 8 tokens); smaller-group (forgotten, as a group of"
        " smaller blocks came).",
        lambda feed: [((why,), float(count)) for why, count in feed.refused.items()],
    ),
    _of_events(
        "epp_kv_event_blocks",
        "endpoint",
        "Blocks that the engine says it holds, of all ranks.",
        lambda feed: [((name,), float(held)) for name, _, held in feed.endpoints()],
    ),
    _of_events(
        "epp_kv_events_believed",
        "endpoint problem",
        "1 where the engine's events are believed, 0 where the estimate counts: unheard (none came yet), lost"
        " (of late), deaf (none came of prompts that were sent), wrong (answers show the estimate nearer).",
        lambda feed: [((name, why), float(not why)) for name, why, _ in feed.endpoints()],
    ),
    *(
        _of_events(f"llm_d_epp_kv_cache_{name}_total", "", text, _blocks(what))
        for name, what, text in (
            ("index_admissions", "stored", "Blocks that engines said they stored."),
            (
                "index_evictions",
                "removed",
                "Blocks that engines said they removed, and of which they hold no other copy.",
            ),
            (
                "events_dedup_removed_hashes_forwarded",
                "removed",
                "Equal to llm_d_epp_kv_cache_index_evictions_total.",
            ),
            ("events_dedup_removed_hashes_suppressed", "kept", "Blocks removed that were stored twice."),
        )
    ),
    _of_events(
        "llm_d_epp_kv_cache_events_active_subscribers",
        "",
        "Endpoints whose events are listened to.",
        read.one(lambda feed: len(feed.endpoints())),
    ),
    # Protocol and transport.
    gauge("llm_d_epp_extproc_streams_inflight", "", "ext_proc streams open now."),
    counter("llm_d_epp_extproc_streams_total", "code", "ext_proc streams ended, by gRPC status."),
    histogram("llm_d_epp_extproc_stream_duration_seconds", "", "Life of a stream.", _DURATION_S),
    counter(
        "epp_request_bodies_total",
        "seen mode",
        "Requests by what was seen of their body (cut: at a buffer's limit) and by mode of the proxy.",
        "whole normal,none normal,unread normal,cut normal",
    ),
    shown(
        "sampler",
        "epp_response_sampling_total",
        "observe",
        "Responses that pass, or would pass, through the picker: read, carried unread, or left.",
        read.sampled,
    ),
    shown(
        "sampler",
        "epp_response_sampling_share",
        "",
        "Share of the responses passing the picker that are read, now in force.",
        read.one(lambda sampler: sampler.share),
    ),
    shown(
        "receivers",
        "epp_reports_total",
        "receiver result",
        "Reports of Envoy, by receiver and by what became of them.",
        read.reports,
    ),
    counter("epp_late_reports_total", "", "Reports on unknown or finished decisions, dropped."),
    counter(
        "epp_connections_closed_total",
        "listener reason",
        "Connections closed by the picker: over a limit, idle, for room, balance, or a flood of work.",
        "grpc limit,http limit,first_token limit,grpc idle,grpc room,http room,grpc flood,grpc balance",
    ),
    counter(
        "epp_connections_throttled_seconds_total",
        "",
        "Time that gRPC connections were not read because their peers were over their budgets of work.",
    ),
    shown(
        "bodies",
        "epp_held_body_bytes",
        "",
        "Bytes held for requests and responses; request.max_held_body_bytes bounds them.",
        read.one(lambda bodies: bodies.held_bytes),
    ),
    # The process.
    Row("llm_d_epp_info", "gauge", ("commit", "build_ref"), "Which picker this is."),
    counter(
        "epp_faults_total",
        "part",
        "Faults of the picker: streams that failed; restarts of the thread that writes records, and of tasks"
        " that work with other pickers.",
        "stream,recorder,task",
    ),
    counter("epp_records_dropped_total", "", "Records lost to a full queue or disk."),
    counter(
        "epp_event_loop_stall_seconds_total",
        "",
        "Time by which heartbeats of the event loop came late, in all; requests waited as long.",
    ),
    gauge(
        "epp_file_ok",
        "file",
        "1 while a watched file's content is in force, 0 if refused or gone; eds is written, for Envoy.",
    ),
    gauge("epp_kubernetes_ok", "resource", "1 while the API server lets the resource be followed."),
    counter(
        "epp_kubernetes_failures_total",
        "resource reason",
        "Calls of the API server that failed and watches that broke, by reason.",
    ),
    # The pool, llm-d's names.
    _of_picker("llm_d_epp_ready_endpoints", "name", "Endpoints that may be chosen.", read.ready),
    _of_picker(
        "llm_d_epp_average_queue_size", "name", "Mean of requests waiting in engines.", read.pool(1, np.mean)
    ),
    _of_picker(
        "llm_d_epp_std_dev_queue_size",
        "name",
        "Standard deviation of requests waiting in engines.",
        read.pool(1, np.std),
    ),
    _of_picker(
        "llm_d_epp_average_running_requests",
        "name",
        "Mean of requests running in engines.",
        read.pool(0, np.mean),
    ),
    _of_picker(
        "llm_d_epp_std_dev_running_requests",
        "name",
        "Standard deviation of requests running in engines.",
        read.pool(0, np.std),
    ),
    _of_picker(
        "llm_d_epp_average_kv_cache_utilization",
        "name",
        "Mean of KV cache usage of engines, 0 to 1.",
        read.pool(2, np.mean),
    ),
    _of_picker(
        "llm_d_epp_std_dev_kv_cache_utilization",
        "name",
        "Standard deviation of KV cache usage of engines, 0 to 1.",
        read.pool(2, np.std),
    ),
    _of_picker(
        "llm_d_epp_per_endpoint_queue_size",
        "name model_server_endpoint",
        "Requests waiting in the engine.",
        read.queues,
    ),
    _of_picker("llm_d_epp_inflight_requests", _LOAD, "Unfinished requests of the endpoint.", read.load(2)),
    _of_picker("llm_d_epp_inflight_tokens", _LOAD, "Prompt tokens of its unfinished requests.", read.load(0)),
    _of_picker(
        "llm_d_epp_flow_control_pool_saturation",
        "inference_pool stage",
        "How saturated the pool is; from 1 on, requests of negative priority are refused.",
        lambda s: [((s.pool, "effective"), s.saturation(s.mono_s()))],
    ),
    _of_picker(
        "llm_d_epp_flow_control_stale_endpoints",
        "detector",
        "Endpoints whose metrics are missing or older than `saturation.stale_after_s`, where it is set.",
        read.stale_endpoints,
    ),
    _of_queue(
        "llm_d_epp_flow_control_capacity_utilization_requests",
        "priority inference_pool",
        "Requests of a priority that wait, as a part of those that may.",
        read.queue_fill(0),
    ),
    _of_queue(
        "llm_d_epp_flow_control_capacity_utilization_bytes",
        "priority inference_pool",
        "Bytes that they hold, as a part of those that they may.",
        read.queue_fill(1),
    ),
    _of_queue(
        "llm_d_epp_flow_control_global_capacity_utilization_requests",
        "inference_pool",
        "The same of requests of all priorities, where `queue.total_requests` is set.",
        read.total_fill(0),
    ),
    _of_queue(
        "llm_d_epp_flow_control_global_capacity_utilization_bytes",
        "inference_pool",
        "The same of their bytes, where `queue.total_bytes` is set.",
        read.total_fill(1),
    ),
    histogram(
        "llm_d_epp_flow_control_dispatch_cycle_duration_seconds",
        "",
        "Time of a look at what waits.",
        _HANDLED_S,
    ),
    histogram(
        "llm_d_epp_flow_control_request_enqueue_duration_seconds",
        "fairness_id priority outcome",
        "Time to put a request into the queue, or to refuse it there.",
        _HANDLED_S,
    ),
    gauge("llm_d_epp_flow_control_queue_size", _QUEUED, "Requests that wait in the picker."),
    gauge("llm_d_epp_flow_control_queue_bytes", _QUEUED, "Bytes that they hold."),
    histogram(
        "llm_d_epp_flow_control_request_queue_duration_seconds",
        f"{_QUEUED} outcome",
        "Time in the queue by what ended it, 0 for requests that find room.",
        _QUEUE_S,
    ),
    counter(
        "llm_d_epp_flow_control_requests_total",
        "outcome priority inference_pool",
        "Requests that the queue let go (Dispatched) or dropped, and why.",
    ),
    _of_queue(
        "llm_d_epp_program_aware_attained_service_tokens",
        "program_id",
        "What each program was served of late, with program-aware fairness.",
        read.attained,
    ),
    shown(
        "waits",
        "llm_d_epp_program_aware_avg_wait_time_milliseconds",
        "program_id",
        "Mean wait of each program's requests, likewise.",
        lambda metrics: [((flow,), 1e3 * wait_s) for flow, wait_s in read.waits_by_flow(metrics).items()],
    ),
    shown(
        "waits",
        "llm_d_epp_program_aware_jains_fairness_index",
        "",
        "Jain's index of these means: 1 where they are equal.",
        read.jains_index,
    ),
    _of_queue(
        "epp_queue_without_endpoint",
        "",
        "Requests that wait because the pool has no endpoint that may serve; what to scale from zero by.",
        read.one(lambda s: s.binding.without_endpoint(s.mono_s())),
    ),
    _of_queue(
        "epp_queue_open_engines",
        "",
        "Engines that have room for the lowest priority that waits.",
        read.one(lambda s: float(s.binding.open_engines(s.mono_s()))),
    ),
    histogram("epp_queue_seconds", "", "How long requests waited in the picker, of those that did.", _TTFT_S),
    # Agents whose turns are held, where they are.
    _of_queue(
        "epp_programs_active",
        "endpoint",
        "Agents whose contexts have a place in the endpoint's KV cache; pickers that share count the same.",
        read.program_sets(lambda engine: float(len(engine.active))),
    ),
    _of_queue(
        "epp_programs_kv_share",
        "endpoint",
        "Their contexts over the endpoint's KV cache.",
        read.program_sets(lambda engine: engine.used_tokens / engine.capacity_tokens),
    ),
    _of_queue(
        "epp_program_prefill_share",
        "",
        "Share of engine time that agents' contexts would take if none was cached: held from .2 on.",
        read.of_programs(lambda _, programs: [((), programs.guard.share)]),
    ),
    _of_queue(
        "epp_program_held",
        "",
        "Turns of agents that wait for a place.",
        read.of_programs(lambda _, programs: [((), float(len(programs.held)))]),
    ),
    _of_queue(
        "epp_program_longest_hold_seconds",
        "",
        "Longest time that one was held.",
        read.of_programs(lambda _, programs: [((), programs.longest_s)]),
    ),
    _of_queue(
        "epp_program_turns_total",
        "how",
        "Turns of agents: held, and of these forced (let go without a place) and left (given up by callers).",
        read.program_counts("held", "forced", "left"),
    ),
    _of_queue(
        "epp_program_tokens_total",
        "kind",
        "Tokens of agents' prompts while turns are held: all, expected cached.",
        read.program_counts("prompt", "cached"),
    ),
    _of_picker(
        "llm_d_epp_prefix_indexer_size",
        "plugin_name plugin_type",
        "Entries of the prefix index.",
        lambda s: [(("prefix-index", "prefix-index"), float(s.datastore.index.distinct_blocks))],
    ),
    # Endpoints, ours.
    _of_picker(
        "epp_endpoint_unavailable",
        "endpoint reason",
        "1 for each reason why an endpoint gets no new requests: ejected, draining, retry-after, unproven "
        "(no good probe or answer of late, while others have one).",
        read.unavailable,
    ),
    _of_picker(
        "epp_health_panicking",
        "",
        "1 while ejections are ignored: nearly all endpoints are ejected, and no other answers probes.",
        read.one(lambda s: s.datastore.health.standing(s.mono_s()).panicking),
    ),
    counter(
        "epp_endpoint_events_total",
        "endpoint event",
        "What happened to an endpoint: probe-failed, scrape-failed, gpu-scrape-failed, ejected, restarted "
        "(its engine), model-refused (its engine does not know a model), wrong-model (it answered by "
        "another).",
    ),
    gauge(
        "epp_endpoint_model_mismatch",
        "endpoint",
        "Names that the endpoint's engine is asked for and does not list in /v1/models; 0 is good.",
    ),
    _of_picker(
        "epp_endpoint_engine_age_seconds",
        "endpoint",
        "Age of the engine's metrics.",
        read.by_endpoint(lambda datastore, now_s: now_s - datastore.engine.updated_s),
    ),
    _of_picker(
        "epp_endpoint_pending_uncached_tokens",
        "endpoint",
        "Uncached tokens of requests that await their first token.",
        read.by_endpoint(lambda datastore, _: datastore.ledger.pending_uncached_tokens),
    ),
    _of_picker(
        "epp_endpoint_rtt_seconds",
        "endpoint source",
        "Round trip over an open connection, and its source: Envoy's connects, probes, or an assumption.",
        read.rtts,
    ),
    _of_picker(
        "epp_endpoint_hit_ratio",
        "endpoint",
        "Cached tokens that the engine had of late over those expected of it.",
        read.by_endpoint(lambda datastore, _: datastore.calibration.hit_ratio),
    ),
    _of_picker(
        "epp_endpoint_slowness",
        "endpoint",
        "Factor by which an endpoint was found slower than its engine class; 1 for equals.",
        read.slowness,
    ),
    _of_picker(
        "epp_engine_rate",
        "engine_class rate state",
        "Times of an engine class as learned, in ms, and what they rest on (state).",
        read.rates,
    ),
    _of_picker(
        "epp_path_requests_total",
        "path connection",
        "Requests whose connection Envoy reported: opened for them (cold), or there before (warm).",
        read.path_requests,
    ),
    _of_picker(
        "epp_path_network_seconds",
        "path connection",
        "Estimated network time to the first byte for a body of mean size; cold opens a connection.",
        read.path_network,
    ),
    shown(
        "tokenizers",
        "epp_model_tokens_counted",
        "model_name by",
        "1 for what counts the tokens of prompts for a served model: tokenizer or estimate.",
        read.token_counters,
    ),
    # Other pickers.
    _of_peers("epp_cluster_connected", "", "1 unless NATS is away.", read.one(lambda link: link.connected)),
    _of_peers("epp_cluster_peers", "", "Other pickers heard.", read.one(lambda link: link.index_sync.peers)),
    _of_peers(
        "epp_cluster_index_complete",
        "",
        "1 once the index has what other pickers knew when this one joined.",
        read.one(lambda link: link.index_sync.warm),
    ),
    _of_peers("epp_cluster_leading", "", "1 at the leader.", read.one(lambda link: link.leading.leads)),
    _of_peers("epp_cluster_term", "", "Term of the leader.", read.one(lambda link: link.leading.term)),
    _of_peers(
        "epp_cluster_messages_total",
        "result",
        "Messages between pickers: sent, dropped without NATS, received, lost, or ignored and why.",
        read.peer_messages,
    ),
    _of_peers(
        "epp_cluster_change_age_seconds",
        "quantile",
        "Age at arrival of the changes in the last thousand messages, by the wall clocks of both pickers.",
        read.change_ages,
    ),
    # Other regions.
    counter("epp_region_forwarded_total", "region", "Requests that a decision sent to a peer region first."),
    counter(
        "epp_region_refused_total",
        "reason",
        "Requests of peer regions refused before an engine saw them: full, or why their hop is not believed.",
    ),
    shown(
        "regions",
        "epp_region_summary_age_seconds",
        "region",
        "Age of what is known of a peer region; from 3 on it is not chosen while another may serve.",
        read.summary_ages,
    ),
    shown(
        "regions",
        "epp_region_bytes_total",
        "direction",
        "Bytes of summaries and sketches sent to peer regions and received from them.",
        lambda link: link.bytes.items(),
    ),
    # Weights and models in force.
    _of_picker(
        "epp_weight",
        "name source arm",
        "Weight in force, of the incumbent and, while a trial runs, of its second arm.",
        read.weights,
    ),
    _of_picker(
        "epp_weights_written_timestamp_seconds",
        "policy version",
        "Unix time at which the tuner wrote the weights in force; 0 without a tuner.",
        read.weights_version,
    ),
    counter(
        "epp_learned_decisions_total",
        "by",
        "Decisions of a learned policy by what decided: model, explored, or why the heuristic did.",
    ),
    shown(
        "model",
        "epp_reward_model_age_seconds",
        "version withdrawn",
        "Time since the training of the reward model, and why it is withdrawn, if it is.",
        read.model_age,
    ),
    shown(
        "shadow",
        "epp_shadow_decisions_total",
        "policy result",
        "Live decisions scored in shadow: the same endpoint (agreed), another (differed), or failed.",
        read.shadowed,
    ),
    shown(
        "shadow",
        "epp_shadow_estimated_difference_seconds",
        "policy",
        "Mean estimated latency of the shadow's choices less that of the live ones; below 0 is faster.",
        read.differences,
    ),
)
