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
                    rate("epp_cache_tokens_total", only='kind="expected"'),
                    rate("epp_cache_tokens_total", only='kind="prompt"'),
                ),
                "expected by the picker",
            ),
            (mean("llm_d_epp_prefix_indexer_hit_ratio"), "prefix index, mean over all requests"),
        ),
        "Over requests whose engine reports it. Expected above reported: caches are smaller than thought.",
    ),
    Panel("What engines report of tokens", "reqps", ((rate("epp_usage_total", "known"), "{{known}}"),)),
    Panel(
        "TTFT observed over predicted",
        "short",
        quantiles("epp_ttft_prediction_ratio", 0.1, 0.5, 0.9),
        "1 is as predicted. A wide band: something that the picker does not see decides TTFT.",
    ),
    Panel("Prefix index", "short", ((f"sum(llm_d_epp_prefix_indexer_size{WHO})", "blocks"),)),
)
PICKER = (
    Panel(
        "Decision cost",
        "s",
        (
            *quantiles(R + "processing_duration_seconds", 0.5, 0.99),
            *((q, f"schedule {n}") for q, n in quantiles("llm_d_epp_scheduler_e2e_duration_seconds", 0.99)),
        ),
    ),
    Panel(
        "Weights in force",
        "short",
        ((f"max by (name, source, arm) (epp_weight{WHO})", "{{name}} ({{source}}, {{arm}})"),),
        "Two arms while a trial runs; `epp tune status` says what is tried and why.",
    ),
    Panel(
        "Trial: decisions by arm",
        "reqps",
        ((rate("epp_decisions_total", "arm", 'arm!="none"'), "{{arm}}"),),
        "In a switchback the arms take turns: one at a time has nearly all.",
        stacked=True,
    ),
    Panel(
        "Age of the tuner's file",
        "s",
        ((f"time() - max(epp_weights_written_timestamp_seconds{WHO} > 0)", "age"),),
        "A living tuner writes every few minutes while a trial runs, and rarely while it is frozen.",
    ),
    Panel(
        "Recorder, leases, reports: should be 0",
        "short",
        (
            (rate("epp_records_dropped_total"), "records dropped"),
            (rate("epp_leases_lost_total", "reason"), "leases {{reason}}"),
            (rate("epp_late_reports_total"), "late reports"),
            (rate("epp_reports_total", "receiver, result", 'result!="received"'), "{{receiver}} {{result}}"),
            (rate("epp_faults_total", "part"), "faults: {{part}}"),
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
        ((f"min by (file) (epp_file_ok{WHO})", "{{file}}"),),
    ),
)
ENDPOINTS = (
    Panel("RTT", "s", gauge("epp_endpoint_rtt_seconds")),
    Panel(
        "Requests on cold connections",
        "percentunit",
        (
            (
                share(
                    rate("epp_path_requests_total", "path", 'connection="cold"'),
                    rate("epp_path_requests_total", "path"),
                ),
                "{{path}}",
            ),
        ),
        "Share of requests by region that had a connection opened for them.",
    ),
    Panel(
        "Network to the first byte",
        "s",
        ((f"max by (path, connection) (epp_path_network_seconds{WHO})", "{{path}} {{connection}}"),),
        "As estimated for a body of mean size, on a warm connection and on a cold one with its opening.",
    ),
    Panel("Engine queue", "short", gauge("llm_d_epp_per_endpoint_queue_size", "model_server_endpoint")),
    Panel("Engine batch, mean", "short", gauge("llm_d_epp_average_running_requests", "name")),
    Panel("KV cache in use, mean", "percentunit", gauge("llm_d_epp_average_kv_cache_utilization", "name")),
    Panel("Uncached tokens before their first token", "short", gauge("epp_endpoint_pending_uncached_tokens")),
    Panel(
        "Prompt tokens of unfinished requests", "short", gauge("llm_d_epp_inflight_tokens", "endpoint_name")
    ),
    Panel(
        "Health",
        "short",
        (
            (f"sum(llm_d_epp_ready_endpoints{WHO})", "ready"),
            (f"sum by (reason) (epp_endpoint_unavailable{WHO})", "{{reason}}"),
            (f"max(epp_health_panicking{WHO})", "ejections ignored (panic)"),
        ),
    ),
    Panel(
        "Failures",
        "short",
        ((rate("epp_endpoint_events_total", "endpoint, event"), "{{event}} {{endpoint}}"),),
    ),
    Panel(
        "Server errors",
        "reqps",
        ((rate("epp_outcomes_total", "endpoint", 'status="5xx"'), "{{endpoint}}"),),
    ),
)
_AGREEMENT = share(
    rate("epp_shadow_decisions_total", "policy", 'result="agreed"'),
    rate("epp_shadow_decisions_total", "policy"),
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
        "Age of the reward model",
        "s",
        ((f"max by (instance) (epp_reward_model_age_seconds{WHO})", "{{instance}}"),),
        "Above six hours the heuristic decides.",
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
                f"avg by (policy) (epp_shadow_estimated_difference_seconds{WHO})",
                "{{policy}}",
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
