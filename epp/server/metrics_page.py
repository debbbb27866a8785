"""The page that Prometheus reads, written so that no request waits for it.

The client library's writer takes 0.1 s for a thousand endpoints, all at once. This one gives the event loop
back after each metric, and leaves out the ``_created`` series, which nobody asks for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CREATED = "_created"
_IN_LABELS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


async def page(registry: CollectorRegistry) -> bytes:
    """Everything in the registry in Prometheus' text format, version 0.0.4."""
    pieces = []
    for metric in registry.collect():
        pieces.append(_text(metric))
        await asyncio.sleep(0)
    return "".join(pieces).encode()


def _text(metric: Metric) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    lines = [f"# HELP {name} {metric.documentation.translate(_IN_HELP)}\n# TYPE {name} {metric.type}\n"]
    created = metric.name + _CREATED
    for sample in metric.samples:
        if sample.name == created:
            continue
        value = _number(sample.value)
        if sample.labels:
            labels = ",".join([f'{key}="{_escaped(text)}"' for key, text in sample.labels.items()])
            lines.append(f"{sample.name}{{{labels}}} {value}\n")
        else:
            lines.append(f"{sample.name} {value}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_IN_LABELS)


def _number(value: float) -> str:
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
