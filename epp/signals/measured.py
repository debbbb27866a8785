"""The candidates' columns of probes and scrapes, kept until either changes.

Owns the filling of what is not known. Probes and scrapes come a few times a second and decisions by the
hundred, so most decisions share the columns of the one before; only ages grow in between. Shared columns
cannot be written.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.signals.engine_metrics import EngineMetrics
    from epp.signals.rtt import RttTable
    from epp.signals.slots import Rows
    from epp.types import Flags, Floats

#: Columns that can be unknown, in the order of the block that is filled.
_FILLABLE = ("rtt_ms", "engine_running", "engine_waiting", "engine_kv_usage", "engine_used_tokens")
_AGE = "engine_age_ms"


class Columns(Struct, frozen=True):
    """What was measured of some endpoints; a column each.

    Attributes:
        rows: where they are.
        versions: of the tables that it was taken from.
        values: ``[5, rows]`` in the order of `_FILLABLE`, nothing unknown.
        unknown: masks of what was not known and was filled, by column, that of ages included.
        updated_s: when each one's metrics came, NaN where they did not.
        rtt_sources: where round trips come from, as indices of `epp.types.RTT_SOURCES`.
    """

    rows: Rows
    versions: tuple[int, int]
    values: Floats
    unknown: Mapping[str, Flags]
    updated_s: Floats
    rtt_sources: NDArray[np.int8]

    def age_ms(self, now_s: float) -> Floats:
        """Return the age of the metrics by endpoint; where there are none the largest known."""
        ages_ms: Floats = (now_s - self.updated_s) * 1e3
        if _AGE in self.unknown:
            ages_ms[self.unknown[_AGE]] = np.fmax.reduce(ages_ms, initial=0.0)
        return ages_ms


class Measured:
    """The last candidates' columns.

    Args:
        rtt: round-trip times.
        engine: engine metrics.
    """

    def __init__(self, rtt: RttTable, engine: EngineMetrics) -> None:
        self._rtt, self._engine = rtt, engine
        self._kept: Columns | None = None

    def columns(self, rows: Rows, now_s: float) -> Columns:
        """Return the columns of these rows; ``rows`` is compared by identity."""
        rtt, engine, kept = self._rtt, self._engine, self._kept
        rtt_ms, block = rtt.rtt_ms(now_s), engine.block(now_s)  # what is stale by now goes, and is a change
        versions = rtt.version, engine.version
        if kept is not None and kept.rows is rows and kept.versions == versions:
            return kept
        updated_s = engine.updated_s[rows].copy()
        values = np.empty((len(_FILLABLE), len(updated_s)))
        values[0], values[1:] = rtt_ms[rows], block[:, rows]
        unknown: dict[str, Flags] = {}
        if math.isnan(np.minimum.reduce(values, axis=None)):  # the cheapest question for any NaN
            unknown = _fill(values)
        without = np.isnan(updated_s)
        if without.any():
            unknown[_AGE] = without
        sources = rtt.sources(now_s)[rows].copy()
        kept = self._kept = Columns(rows, versions, values, unknown, updated_s, sources)
        for shared in (values, sources):
            shared.flags.writeable = False
        return kept


def _fill(values: Floats) -> dict[str, Flags]:
    """Replace NaN by the largest known of its row, 0 when none is known; in all these larger is worse."""
    masks = np.isnan(values)
    worst = np.fmax.reduce(values, axis=1, initial=0.0)
    np.copyto(values, worst[:, None], where=masks)
    filled = np.flatnonzero(masks.any(axis=1)).tolist()
    return {_FILLABLE[row]: masks[row] for row in filled}
