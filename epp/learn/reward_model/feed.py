"""Requests out of the flight recorder's folder as a learner sees them, each once (`epp.learn.sidecar.feed`).

Unlike a tuner, a learner begins with what is on file: old requests teach as well as new ones. Decisions of
all policies count; those of the one that is learned, and of the heuristic before it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from epp.errors import EppError
from epp.learn.reward_model.samples import Logged, choice_of, logged
from epp.learn.reward_model.store import choice_from, plain_of
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
_KEPT = ("id", "at", "basis", "weights_version", "endpoints", "chosen")


def newest_files(folder: Path, most_bytes: float) -> frozenset[str]:
    """Names of the newest files of records, of about this size together; one at least, where there is one."""
    names, size = set(), 0
    try:
        for path in reversed(record_files(folder)):
            names.add(path.name)
            size += path.stat().st_size
            if size >= most_bytes:
                break
    except (EppError, OSError):  # rotation was faster, or there is no folder yet
        pass
    return frozenset(names)


class LogFeed(Feed[Logged]):
    """New requests of a folder.

    Args:
        folder: of the flight recorder; may not exist yet.
        features: of the model.
        report: takes sentences for the log, each once.
        state: where an earlier feed was; None to begin with the newest files.
        history_bytes: of those.
    """

    #: Each holds some 700 bytes of every candidate.
    max_waiting = 20_000

    def __init__(
        self,
        folder: Path,
        *,
        features: Sequence[str],
        report: Callable[[str], None],
        state: State | None = None,
        history_bytes: float = HISTORY_BYTES,
    ) -> None:
        self._features = features
        super().__init__(folder, report=report, state=state, first=newest_files(folder, history_bytes))

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the inputs of all candidates, in plain values so that they can be persisted."""
        if record["basis"] != "policy":
            return None
        try:
            choice = choice_of(decision_of(record), self._features)
        except RecordError as error:
            raise ValueError(str(error)) from error
        return {
            **{key: record[key] for key in _KEPT},
            "request": {"prompt_tokens": record["request"]["prompt_tokens"]},
            "choice": plain_of(choice),
        }

    def make(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Logged | None:
        """Return the request."""
        ended = sample_of(kept, outcome, now_wall_s)
        return None if ended is None else logged(choice_from(kept["choice"]), ended)


def all_on_file(folder: Path, features: Sequence[str], report: Callable[[str], None]) -> list[Logged]:
    """Read every request that has ended, in the order of time."""
    feed = LogFeed(folder, features=features, report=report, history_bytes=math.inf)
    found = list(feed.new(0.0, give_up_s=math.inf))
    while feed.behind:
        found += feed.new(0.0, give_up_s=math.inf)
    if feed.state.damaged:
        report(f"{feed.state.damaged} damaged lines were passed over")
    return sorted(found, key=lambda entry: entry.sample.at_wall_s)
