"""Writes docs/metrics.md from the table of metrics: ``python -m docs.generate_metrics``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epp.metrics.metrics import MAX_FLOWS, MAX_PRIORITIES, MAX_STRANGE_MODELS
from epp.metrics.table import TABLE

if TYPE_CHECKING:
    from epp.metrics.metrics import Row

PAGE = Path(__file__).parent / "metrics.md"

HEAD = f"""<!-- Written by docs/generate_metrics.py from the table of metrics; a test keeps it fresh. -->

# Metrics

`GET /metrics` on `listen.http`. `epp_*` are ours. `llm_d_epp_*` are llm-d's names with llm-d's meaning.
`protocol.old_metric_names`, on with llm-d's flags, shows them also by the names and labels that they had:
`inference_objective_*`, `inference_pool_*`, `inference_extension_*`, `llm_d_inference_scheduler_*`,
`kvcache_*`. A dashboard is in `deploy/grafana/`, alert rules are in
`deploy/prometheus/`.

Labels are bounded:

* `model_name` is a model of the endpoints file or the cluster, one that engines list in `/v1/models`,
  or one of the first {MAX_STRANGE_MODELS} others (of at most 128 characters) that clients name; the
  rest are `other`. `target_model_name` equals it.
* `priority` is that of the request's InferenceObjective, 0 without one, `other` after {MAX_PRIORITIES}
  different ones. The two `inflight` gauges have all requests under 0. `fairness_id` has llm-d's
  default, but for the queue: there it is the request's flow (docs/queue.md), `other` after {MAX_FLOWS}.
* `endpoint` is an address of the pool. Its series go when it leaves; what ends later on it is counted
  as `gone`.
* `name` and `inference_pool` are the InferencePool's, `default` without one.

What the names do not say:

* **Absent is not zero.** Engines report token counts only where they are asked to, cached tokens only
  where they were started to, and the first token is known only where Envoy reports it. Compare a
  histogram's `_count` with that of `llm_d_epp_request_duration_seconds`, or look at `epp_usage_total`.
* `epp_cache_tokens_total` has all kinds in the engine's tokens. `expected` above `reported`: caches
  hold less than the picker expects.
* `epp_ttft_prediction_ratio` is above 1 where the first token came later than predicted: by the round
  trip and a straight line over uncached tokens through the endpoint's last requests. It decides
  nothing.
* `epp_connections_closed_total`: `limit` is `listen.max_connections` (but for first tokens also half of them
  for one peer), `room` an idle connection whose place was needed, `flood` a peer over its budget of work.
* `epp_learned_*` and `epp_reward_model_*` are there where `lodestar` decides or stands in shadow,
  `epp_shadow_*` where `shadow` names policies (docs/lodestar.md).
"""
#: llm-d's names without ``llm_d_epp_`` that are not here, and why.
ABSENT = (
    (("flow_control_revocations_issued_total flow_control_revocations_total flow_control_reclaim_target"
     " flow_control_pending_reclaim flow_control_revocation_confirmation_seconds"),
     "requests that run are not evicted"),
    ("plugin_data_scope_violations_total", "plugins are not kept from each other's data"),
    (("request_ttft_prediction_duration_seconds request_tpot_prediction_duration_seconds"
     " kv_cache_index_lookup_latency_seconds"),
     "parts of `scheduler_e2e_duration_seconds`; nobody else is asked"),
    ("disaggregatedset_revision_gating_share", "revisions take their share by load"),
    ("disaggregatedset_strict_header_no_match_total", "`epp_refusals_total` has such requests"),
    (("kv_cache_events_messages_received_total kv_cache_events_stores_skipped_total"
     " kv_cache_events_removals_skipped_total kv_cache_events_zmq_errors_total"
     " kv_cache_events_subscriber_reconnections_total"),
     "`epp_kv_event_messages_total`, `epp_kv_event_refused_blocks_total`; ZeroMQ connects by itself"),
    ("kv_cache_events_pool_queue_depth kv_cache_events_pool_capacity", "events wait in no pool"),
)  # fmt: skip
FOOT = """
## Spans and logs

`tracing: true` (`pip install 'gorgo-epp[otel]'`; the image has it) exports a span of each request over
OTLP, by gRPC. OpenTelemetry's variables say where to and how many:

```sh
export OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317
export OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.1
```

The span `pick` continues the request's `traceparent`, and the engine gets one that continues the span:
spans of vLLM (`--otlp-traces-endpoint`) are its children.

| attribute | meaning |
|---|---|
| `epp.decision_id`, `epp.policy`, `gen_ai.request.model` | as in records |
| `epp.chosen`, `epp.cost`, `epp.term.NAME` | the chosen endpoint, its cost and the cost's terms |
| `epp.runner_up`, `epp.runner_up.term.NAME` | the cheapest other endpoint |
| `epp.margin` | its cost, less that of the chosen endpoint |
| `http.response.status_code`, `epp.rule` | of a refusal instead; its span has the status error |

Requests do not wait for the collector. While it is away or slow, `OTEL_BSP_MAX_QUEUE_SIZE` (2,048) spans
wait and the oldest are dropped; the log has an error for each batch that is lost. At the end the picker
waits 2 s for it.

`epp serve --log-format json` writes the log as an object a line: `level`, `ts`, `logger`, `msg`, and
`stacktrace` where an exception is logged.
"""
_COLUMNS = "\n| name | type | labels | meaning |\n|---|---|---|---|\n"


def page() -> str:
    """Write the whole page."""
    ours = [row for row in TABLE if row.name.startswith("epp_")]
    theirs = [row for row in TABLE if row not in ours]
    tables = (("Ours", ours), ("llm-d's", theirs))
    parts = [f"\n## {title}\n{_COLUMNS}{''.join(map(_line, rows))}" for title, rows in tables]
    return "".join((HEAD, *parts, _absent(), FOOT))


def _absent() -> str:
    here = sum(row.name.startswith("llm_d_") for row in TABLE)
    text = (
        f"Of the names in llm-d-router (ebab687) {here} are above. Without `llm_d_epp_`, these are not here:"
    )
    rows = (f"| {', '.join(f'`{name}`' for name in names.split())} | {why} |\n" for names, why in ABSENT)
    return f"\n## Of llm-d's, not here\n\n{text}\n\n| name | why |\n|---|---|\n{''.join(rows)}"


def _line(row: Row) -> str:
    kind = row.kind
    if row.bounds:
        kind = f"histogram, {len(row.bounds)} bounds {row.bounds[0]:g} to {row.bounds[-1]:g}"
    return f"| `{row.name}` | {kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
