"""What a picker's metrics show in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.replicas import metric

if TYPE_CHECKING:
    from epp.metrics.metrics import Metrics


def shown(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    """Read one sample of the page; None where there is none."""
    try:
        return metric("".join(metrics.pieces()), name, labels)
    except KeyError:
        return None
