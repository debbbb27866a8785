"""Requests out of the flight recorder's folder as a learner sees them, each once (`epp.learn.sidecar.feed`).

Unlike a tuner, a learner begins with what is on file: old requests teach as well as new ones. Decisions of
all policies count; those of the one that is learned, and of the heuristic before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epp.errors import EppError
from epp.learn.reward_model.samples import Logged, Pending, logged, pending_of
from epp.learn.sidecar.feed import Feed
from epp.learn.tuner.samples import sample_of
from epp.records.files import record_files
from epp.records.schema import RecordError, decision_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from epp.learn.sidecar.feed import State

#: Newest records on file that a first start reads.
HISTORY_BYTES = 256 * 1024 * 1024
_KEPT = ("id", "at", "basis", "weights_version", "chosen")


def newest_files(folder: Path, most_bytes: int = HISTORY_BYTES) -> frozenset[str]:
    """Names of the newest files of records, of about this size together; one at least, where there is one."""
    try:
        files = record_files(folder)
    except EppError:
        return frozenset()
    names, size = set(), 0
    for path in reversed(files):
        names.add(path.name)
        try:
            size += path.stat().st_size
        except OSError:
            continue
        if size >= most_bytes:
            break
    return frozenset(names)


class LogFeed(Feed[Logged]):
    """New requests of a folder.

    Args:
        folder: of the flight recorder; may not exist yet.
        features: of the model.
        tell: takes sentences for the log, each once.
        state: where an earlier feed was; None to begin with the newest files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        features: Sequence[str],
        tell: Callable[[str], None],
        state: State | None = None,
    ) -> None:
        self._features = features
        first = newest_files(folder)
        super().__init__(folder, tell=tell, state=state, first=first)

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """The inputs of all candidates, in plain values so that they can be persisted."""
        if record["basis"] != "policy":
            return None
        try:
            pending = pending_of(decision_of(record), self._features)
        except RecordError as error:
            raise ValueError(str(error)) from error
        if pending is None:
            return None
        return {
            **{key: record[key] for key in _KEPT},
            "endpoints": list(pending.endpoints),
            "request": {"prompt_tokens": record["request"]["prompt_tokens"]},
            "rows": pending.rows.tolist(),
            "engine_classes": list(pending.engine_classes),
            "chances": pending.chances.tolist(),
            "heuristic": pending.heuristic.tolist(),
            "output_tokens": pending.output_tokens,
            "learned": pending.learned,
            "other": pending.other,
        }

    def make(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Logged | None:
        """The request."""
        ended = sample_of(kept, outcome, now_wall_s)
        if ended is None:
            return None
        pending = Pending(
            at_wall_s=float(kept["at"]),
            endpoints=tuple(kept["endpoints"]),
            rows=np.array(kept["rows"], np.float64),
            engine_classes=tuple(kept["engine_classes"]),
            chances=np.array(kept["chances"], np.float64),
            heuristic=np.array(kept["heuristic"], np.float64),
            chosen=int(kept["chosen"]),
            output_tokens=float(kept["output_tokens"]),
            learned=bool(kept["learned"]),
            other=bool(kept["other"]),
        )
        return logged(pending, ended)
