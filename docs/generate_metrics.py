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

`GET /metrics` on `listen.http`. `epp_*` are ours. `llm_d_epp_*` are llm-d's names with llm-d's meaning,
as far as they are listed here. A dashboard is in `deploy/grafana/`, alert rules are in
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
    return "".join((HEAD, *parts, FOOT))


def _line(row: Row) -> str:
    kind = row.kind
    if row.bounds:
        kind = f"histogram, {len(row.bounds)} bounds {row.bounds[0]:g} to {row.bounds[-1]:g}"
    return f"| `{row.name}` | {kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
