"""The dashboard's panels: a line a query. `tools.gen_dashboard` makes Grafana's JSON of them."""

from __future__ import annotations

from dataclasses import dataclass

WHO = '{instance=~"$instance"}'


@dataclass(frozen=True)
class Panel:
    """One graph: title, unit of Grafana, and queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    stacked: bool = False


def rate(name: str, by: str = "", only: str = "") -> str:
    """Sum of rates of a counter, by labels."""
    selector = f'{{instance=~"$instance"{", " + only if only else ""}}}'
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({name}{selector}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """One rate over another; nothing while there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def shares(name: str, by: str) -> str:
    """A counter's rate by labels over its whole rate."""
    return f"{rate(name, by)} / ignoring ({by}) group_left () ({rate(name)} > 0)"


def quantiles(name: str, *wanted: float, by: str = "", only: str = "") -> tuple[tuple[str, str], ...]:
    """Percentiles of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (f"histogram_quantile({q}, {rate(name + '_bucket', labels, only)})", f"{legend}p{q * 100:g}")
        for q in wanted
    )


def mean(name: str) -> str:
    """Mean of a histogram."""
    return share(rate(name + "_sum"), rate(name + "_count"))


def gauge(name: str, label: str = "endpoint") -> tuple[tuple[str, str], ...]:
    """A gauge as it is, by one label."""
    return ((name + WHO, f"{{{{{label}}}}}"),)


R = "llm_d_epp_request_"
TRAFFIC = (
    Panel("Requests", "reqps", ((rate(R + "total", "model_name"), "{{model_name}}"),)),
    Panel(
        "Share per endpoint",
        "percentunit",
        (
            (
                shares("llm_d_epp_scheduler_attempts_total", "endpoint_name, port"),
                "{{endpoint_name}}:{{port}}",
            ),
        ),
        "One endpoint with nearly all of it is a hot spot: raise the weight of the queue.",
        stacked=True,
    ),
    Panel(
        "In flight",
        "short",
        (
            (f"sum(epp_requests_in_flight{WHO})", "requests"),
            (f"sum(llm_d_epp_extproc_streams_inflight{WHO})", "ext_proc streams"),
        ),
    ),
    Panel(
        "Errors",
        "reqps",
        ((rate(R + "error_total", "error_code"), "{{error_code}}"),),
    ),
    Panel("Ends by cause", "reqps", ((rate("epp_outcomes_total", "cause"), "{{cause}}"),)),
    Panel(
        "Refusals and balanced requests",
        "reqps",
        (
            (rate("epp_refusals_total", "rule"), "refused: {{rule}}"),
            (rate("epp_decisions_total", only='basis="balance"'), "balanced without a prompt"),
        ),
    ),
)
LATENCY = (
    Panel("TTFT, streamed", "s", quantiles(R + "ttft_seconds", 0.5, 0.95, 0.99, only='streaming="true"')),
    Panel("E2E", "s", quantiles(R + "duration_seconds", 0.5, 0.95, 0.99)),
    Panel(
        "ITL",
        "s",
        quantiles(R + "streaming_itl_seconds", 0.5, 0.95, 0.99),
        "Mean time between tokens of each answer.",
    ),
    Panel("TTFT p95 by model", "s", quantiles(R + "ttft_seconds", 0.95, by="model_name")),
    Panel("Prompt tokens", "short", quantiles(R + "input_tokens", 0.5, 0.95)),
    Panel("Answer tokens", "short", quantiles(R + "output_tokens", 0.5, 0.95)),
)
CACHE = (
    Panel(
        "Cached share of prompt tokens",
        "percentunit",
        (
            (
                share(
                    rate("epp_cache_tokens_total", only='kind="reported"'),
                    rate("epp_cache_tokens_total", only='kind="prompt"'),
                ),
                "reported by the engines",
            ),
            (
                share(
                    rate("epp_cache_tokens_total", only='kind="believed"'),
                    rate("epp_cache_tokens_total", only='kind="prompt"'),
                ),
                "believed by the picker",
            ),
            (mean("llm_d_epp_prefix_indexer_hit_ratio"), "prefix index, mean over all requests"),
        ),
        "Over requests whose engine told. Belief above report: caches are smaller than thought.",
    ),
    Panel(
        "Error of foretold uncached tokens",
        "short",
        quantiles("epp_uncached_prediction_error_tokens", 0.5, 0.9, by="direction"),
        "too_few: the engine had to prefill more than the picker expected.",
    ),
    Panel("What engines tell of tokens", "reqps", ((rate("epp_usage_total", "known"), "{{known}}"),)),
    Panel(
        "TTFT seen over foretold",
        "short",
        quantiles("epp_ttft_prediction_ratio", 0.1, 0.5, 0.9),
        "1 is as foretold. A wide band: something that the picker does not see decides TTFT.",
    ),
    Panel("Error of foretold TTFT", "s", quantiles("epp_ttft_prediction_error_seconds", 0.5, 0.95)),
    Panel(
        "Prefix index",
        "short",
        (
            (f"sum(epp_prefix_index_blocks{WHO})", "blocks"),
            (f"sum(epp_prefix_index_segments{WHO})", "segments"),
        ),
    ),
)
PICKER = (
    Panel(
        "Decision cost",
        "s",
        (
            *quantiles("epp_decision_seconds", 0.5, 0.99),
            *((q, f"parse {n}") for q, n in quantiles("epp_parse_seconds", 0.99)),
            *((q, f"schedule {n}") for q, n in quantiles("llm_d_epp_scheduler_e2e_duration_seconds", 0.99)),
        ),
    ),
    Panel(
        "Weights in force",
        "short",
        ((f"max by (name, source) (epp_weight{WHO})", "{{name}} ({{source}})"),),
    ),
    Panel(
        "Trial: weights of the second arm",
        "short",
        ((f"max by (name, arm) (epp_trial_weight{WHO})", "{{name}} ({{arm}})"),),
        "Nothing outside of trials; `epp tune status` says what is tried and why.",
    ),
    Panel(
        "Trial: decisions by arm",
        "reqps",
        ((rate("epp_arm_decisions_total", "arm"), "{{arm}}"),),
        "In a switchback the arms take turns: one at a time has nearly all.",
        stacked=True,
    ),
    Panel(
        "Age of the tuner's file",
        "s",
        ((f"time() - max(epp_tuner_written_timestamp_seconds{WHO} > 0)", "age"),),
        "A living tuner writes every few minutes while a trial runs, and rarely while it is frozen.",
    ),
    Panel("Endpoints tied", "short", (*quantiles("epp_tied_endpoints", 0.5, 0.95),)),
    Panel(
        "Recorder, leases, reports: should be 0",
        "short",
        (
            (rate("epp_records_dropped_total"), "records dropped"),
            (rate("epp_recorder_restarts_total"), "recorder restarts"),
            (rate("epp_leases_expired_total"), "leases expired"),
            (rate("epp_leases_pushed_out_total"), "leases pushed out"),
            (rate("epp_late_reports_total"), "late reports"),
            (rate("epp_reports_total", "receiver, result", 'result!="received"'), "{{receiver}} {{result}}"),
            (rate("epp_stream_errors_total"), "stream errors"),
            (rate("epp_rtt_rejected_total"), "RTT samples refused"),
        ),
    ),
    Panel(
        "Reports of Envoy",
        "reqps",
        ((rate("epp_reports_total", "receiver", 'result="received"'), "{{receiver}}"),),
    ),
    Panel(
        "Files in force",
        "bool_on_off",
        (
            (f"min by (file) (epp_file_ok{WHO})", "{{file}}"),
            (rate("epp_file_errors_total", "file"), "errors: {{file}}"),
        ),
    ),
)
ENDPOINTS = (
    Panel("RTT", "s", gauge("epp_endpoint_rtt_seconds")),
    Panel(
        "Requests on cold connections",
        "percentunit",
        ((f"max by (path) (epp_path_cold_share{WHO})", "{{path}}"),),
        "Share of requests by region that had a connection opened for them.",
    ),
    Panel(
        "Network to the first byte",
        "s",
        (
            (f"max by (path, connection) (epp_path_network_seconds{WHO})", "{{path}} {{connection}}"),
            (f"max by (path) (epp_path_connect_seconds{WHO})", "{{path}} connect"),
        ),
        "As estimated for a body of mean size, on a warm connection and on a cold one with its opening.",
    ),
    Panel("Engine queue", "short", gauge("epp_endpoint_engine_waiting")),
    Panel("Engine batch", "short", gauge("epp_endpoint_engine_running")),
    Panel("KV cache in use", "percentunit", gauge("epp_endpoint_engine_kv_usage")),
    Panel("Uncached tokens before their first token", "short", gauge("epp_endpoint_pending_uncached_tokens")),
    Panel("Prompt tokens of unfinished requests", "short", gauge("epp_endpoint_queued_tokens")),
    Panel(
        "Health",
        "short",
        (
            (f"sum(llm_d_epp_ready_endpoints{WHO})", "ready"),
            (f"sum(epp_endpoint_ejected{WHO})", "ejected"),
            (f"sum(epp_endpoint_draining{WHO})", "draining"),
            (f"max(epp_health_panicking{WHO})", "ejections ignored (panic)"),
        ),
    ),
    Panel(
        "Failures",
        "short",
        (
            (rate("epp_probe_failures_total", "endpoint"), "probe {{endpoint}}"),
            (rate("epp_scrape_failures_total", "endpoint"), "scrape {{endpoint}}"),
            (rate("epp_ejections_total", "endpoint"), "ejected {{endpoint}}"),
            (rate("epp_endpoint_restarts_total", "endpoint"), "restarted {{endpoint}}"),
        ),
    ),
    Panel(
        "Server errors",
        "reqps",
        ((rate("epp_outcomes_total", "endpoint", 'status="5xx"'), "{{endpoint}}"),),
    ),
)
_AGREEMENT = (
    f"{rate('epp_shadow_agreed_total', 'policy')} / ({rate('epp_shadow_decisions_total', 'policy')} > 0)"
)
LEARNED = (
    Panel(
        "Who decided",
        "reqps",
        ((rate("epp_learned_decisions_total", "by"), "{{by}}"),),
        "model, explored, or why the heuristic did. Empty where no policy learns.",
        stacked=True,
    ),
    Panel(
        "Candidates by who judged them", "short", ((rate("epp_learned_candidates_total", "by"), "{{by}}"),)
    ),
    Panel(
        "Age of the reward model",
        "s",
        ((f"max by (instance) (epp_reward_model_age_seconds{WHO})", "{{instance}}"),),
        "Above policy.model_max_age_s the heuristic decides.",
    ),
    Panel(
        "Shadow: share of agreement",
        "percentunit",
        ((_AGREEMENT, "{{policy}}"),),
    ),
    Panel(
        "Shadow: estimated difference",
        "s",
        (
            (
                f"avg by (policy, judge) (epp_shadow_estimated_difference_seconds{WHO})",
                "{{policy}} by {{judge}}",
            ),
        ),
        "Below 0 it would have been faster, by estimate; it met the queues of another policy.",
    ),
)
ROWS = {
    "Traffic": TRAFFIC,
    "Latency": LATENCY,
    "Cache and predictions": CACHE,
    "The picker": PICKER,
    "Learned decisions": LEARNED,
    "Endpoints": ENDPOINTS,
}
