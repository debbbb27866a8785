"""Writes deploy/grafana/dashboard.json: ``python tools/gen_dashboard.py``.

A panel here is one line a query instead of forty of JSON; a test compares the committed file with what this
makes, and asks a real Prometheus every query of it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent.parent / "deploy" / "grafana" / "dashboard.json"

_WHO = '{instance=~"$instance"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


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
    return ((name + _WHO, f"{{{{{label}}}}}"),)


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
            (f"sum(epp_requests_in_flight{_WHO})", "requests"),
            (f"sum(llm_d_epp_extproc_streams_inflight{_WHO})", "ext_proc streams"),
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
            (f"sum(epp_prefix_index_blocks{_WHO})", "blocks"),
            (f"sum(epp_prefix_index_segments{_WHO})", "segments"),
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
        ((f"max by (name, source) (epp_weight{_WHO})", "{{name}} ({{source}})"),),
    ),
    Panel(
        "Trial: weights of the second arm",
        "short",
        ((f"max by (name, arm) (epp_trial_weight{_WHO})", "{{name}} ({{arm}})"),),
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
        ((f"time() - max(epp_tuner_written_timestamp_seconds{_WHO} > 0)", "age"),),
        "A living tuner writes every few minutes while a trial runs, and rarely while it is frozen.",
    ),
    Panel("Endpoints tied", "short", (*quantiles("epp_tied_endpoints", 0.5, 0.95),)),
    Panel(
        "Recorder, leases, reports: should be 0",
        "short",
        (
            (rate("epp_records_dropped_total"), "records dropped"),
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
            (f"min by (file) (epp_file_ok{_WHO})", "{{file}}"),
            (rate("epp_file_errors_total", "file"), "errors: {{file}}"),
        ),
    ),
)
ENDPOINTS = (
    Panel("RTT", "s", gauge("epp_endpoint_rtt_seconds")),
    Panel(
        "Requests on cold connections",
        "percentunit",
        ((f"max by (path) (epp_path_cold_share{_WHO})", "{{path}}"),),
        "Share of requests by region that had a connection opened for them.",
    ),
    Panel(
        "Network to the first byte",
        "s",
        (
            (f"max by (path, connection) (epp_path_network_seconds{_WHO})", "{{path}} {{connection}}"),
            (f"max by (path) (epp_path_connect_seconds{_WHO})", "{{path}} connect"),
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
            (f"sum(llm_d_epp_ready_endpoints{_WHO})", "ready"),
            (f"sum(epp_endpoint_ejected{_WHO})", "ejected"),
            (f"sum(epp_endpoint_draining{_WHO})", "draining"),
            (f"max(epp_health_panicking{_WHO})", "ejections ignored (panic)"),
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
        ((f"max by (instance) (epp_reward_model_age_seconds{_WHO})", "{{instance}}"),),
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
                f"avg by (policy, judge) (epp_shadow_estimated_difference_seconds{_WHO})",
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


def dashboard() -> dict[str, Any]:
    """The whole dashboard in Grafana's model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for at, panel in enumerate(row):
            x = at * _WIDTH % _COLUMNS
            panels.append(_panel(len(panels) + 1, panel, x, y + at * _WIDTH // _COLUMNS * _HEIGHT))
        y += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "uid": "gorgo-epp",
        "title": "Endpoint picker (gorgo-epp)",
        "tags": ["llm", "gorgo-epp"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "templating": {"list": _variables()},
        "annotations": {"list": [_weight_changes()]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    if panel.stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                "range": True,
            }
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Picker",
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": "label_values(epp_requests_in_flight, instance)", "refId": "instance"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "sort": 1,
        },
    ]


def _weight_changes() -> dict[str, Any]:
    return {
        "name": "Weights changed",
        "datasource": _DATASOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": f"epp_weights_info{_WHO} unless epp_weights_info{_WHO} offset 1m",
        "titleFormat": "weights {{version}}",
        "textFormat": "{{policy}} on {{instance}}",
        "step": "60s",
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    """Write the file."""
    DASHBOARD.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
