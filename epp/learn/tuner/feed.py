"""Read requests from the flight recorder's folder as the tuner counts them, each once.

A tuner begins at the end of what is there: what came before its first start is history, not evidence.
Requests of a picker whose clock runs ahead do not count: nobody knows which block they were in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.learn.sidecar.feed import Feed
from epp.learn.tuner.samples import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp.learn.sidecar.feed import State
    from epp.learn.tuner.samples import Sample

#: Clocks of two machines may differ by so much; a minute more or less is nothing to a baseline.
_AHEAD_S = 60.0
_KEPT = ("id", "at", "basis", "arm", "weights_version", "session")


class SampleFeed(Feed["Sample"]):
    """New samples of a folder, of what was decided after the first start.

    Args:
        folder: of the flight recorder; may not exist yet.
        policy: samples of other policies are passed over.
        tell: takes sentences for the log, each once.
        state: where an earlier feed was; None to begin at the end of what is there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        policy: str,
        tell: Callable[[str], None],
        state: State | None = None,
    ) -> None:
        self._policy = policy
        #: Endpoints' addresses as of the newest decision.
        self.pool: tuple[str, ...] = ()
        super().__init__(folder, tell=tell, state=state)

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a sample needs."""
        if record["basis"] != "policy" or record["policy"] != self._policy:
            return None
        request = record["request"]
        kept = {key: record[key] for key in _KEPT if key in record}
        kept["request"] = {
            "prompt_tokens": int(request["prompt_tokens"]),
            "affinity_key": str(request.get("affinity_key") or ""),
        }
        kept["endpoints"], kept["chosen"] = [str(record["endpoints"][record["chosen"]])], 0
        self.pool = tuple(record["endpoints"])
        return kept

    def make(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Sample | None:
        """The sample; none from a picker whose clock runs ahead: nobody knows when that was by our own."""
        if kept["at"] - now_wall_s > _AHEAD_S:
            self.report_once(
                f"requests are dated more than {_AHEAD_S:.0f} s ahead of this machine's clock and do not "
                "count: synchronise the clocks of pickers and tuner"
            )
            self.state.stepped += 1
            return None
        return sample_of(kept, outcome, now_wall_s)
