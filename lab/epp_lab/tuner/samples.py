"""One finished request as the tuner sees it, and how a flight record becomes one.

Owns what counts as failed, and which requests say nothing about a policy. Records come in as plain
mappings, as the flight recorder writes them (docs/records.md).

Rules
- A sample belongs to the arm and block that its decision was stamped with, and to the time of its dispatch;
  never to those of its end.
- What failed, or never got a first token, is a sample too: it exceeds every threshold. Left out are only
  requests that no weights could have helped (not priced by the policy, or refused as the client's fault) and
  those that nobody watched.
- A tuner begins at the end of what is there: what came before its first start is history, not evidence.
  Requests of a picker whose clock runs ahead do not count: nobody knows which block they were in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from epp_lab.sidecar.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp_lab.sidecar.feed import FeedState

#: Statuses below 500 that are the fleet's doing and not the client's.
_FLEET_STATUSES = frozenset({408, 429})
#: The client left: nobody knows how long its answer would have taken.
_CLIENT_LEFT = "client-gone"
#: The client may have left, in the middle of an answer of which perhaps nobody saw the first token.
_CUT_OFF = "cut-off"
#: Endings of which nobody saw more than what else the record says.
_UNSEEN = frozenset({"unobserved", "stream-end"})
_BROKEN = frozenset({"upstream-reset", "unreachable", "timed-out", "expired"})
#: Clocks of two machines may differ by so much; a minute more or less is nothing to a baseline.
_AHEAD_S = 60.0
_KEPT = ("id", "at", "basis", "arm", "weights_version")


class Stamp(NamedTuple):
    """What a decision was marked with: trial stage, arm, number of the block."""

    trial: str
    arm: str
    block: int


def read_stamp(text: str) -> Stamp | None:
    """A stamp as `epp.config.plan.assign` made it; None for none, or for one of something else."""
    parts = text.split("/")
    if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():
        return None
    return Stamp(parts[0], parts[1], int(parts[2]))


@dataclass(frozen=True, slots=True)
class Sample:
    """One request.

    Attributes:
        stamp: trial, arm and block, as of dispatch; None outside of trials.
        dispatched_wall_s: Unix time of the decision.
        prompt_tokens: of its prompt.
        id: its decision.
        weights_version: digest of the weights that chose.
        endpoint: who served it.
        ended_wall_s: Unix time at which its outcome was known; NaN while it still runs.
        ttft_ms: time to first token, NaN when none was seen.
        e2e_ms: whole time, NaN when not seen.
        itl_ms: mean time between tokens, NaN when not seen.
        answer_tokens: of one answer, as the engine counted them, None when it did not.
        failed: it failed by the fleet's doing.
        censored: it was cut short by its client, or still runs: ``e2e_ms`` is a lower bound.
    """

    stamp: Stamp | None
    dispatched_wall_s: float
    prompt_tokens: int
    id: str = ""
    weights_version: str = ""
    endpoint: str = ""
    ended_wall_s: float = math.nan
    ttft_ms: float = math.nan
    e2e_ms: float = math.nan
    itl_ms: float = math.nan
    answer_tokens: int | None = None
    failed: bool = False
    censored: bool = False

    @property
    def answered(self) -> bool:
        """Whether a first token came and it did not fail."""
        return not self.failed and not math.isnan(self.ttft_ms)

    @property
    def felt_ms(self) -> float:
        """TTFT plus ITL times the answer's length; TTFT alone for a single token, NaN when not known."""
        if self.answer_tokens is not None and self.answer_tokens <= 1:
            return self.ttft_ms
        if self.answer_tokens is None or math.isnan(self.itl_ms):
            return self.e2e_ms
        return self.ttft_ms + self.itl_ms * (self.answer_tokens - 1)


def sample_of(
    decision: Mapping[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float = math.nan
) -> Sample | None:
    """Return the sample of a decision's record and its outcome's.

    Args:
        decision: the record.
        outcome: its outcome; None for a request that was given up waiting for.
        now_wall_s: Unix time until which a request without an outcome has been waited for.

    Returns:
        None when the request says nothing about the policy.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: a record is not what the recorder writes.
    """
    if decision["basis"] != "policy":
        return None
    started_wall_s = float(decision["at"])
    common: dict[str, Any] = {
        "id": str(decision["id"]),
        "stamp": read_stamp(str(decision.get("arm", ""))),
        "weights_version": str(decision["weights_version"]),
        "dispatched_wall_s": started_wall_s,
        "prompt_tokens": int(decision["request"]["prompt_tokens"]),
    }
    if outcome is None:
        return Sample(
            **common,
            endpoint=str(decision["endpoints"][decision["chosen"]]),
            e2e_ms=(now_wall_s - started_wall_s) * 1000.0,
            censored=True,
        )
    cause, status = str(outcome.get("cause", "")), (outcome.get("failure") or outcome).get("status")
    if status is not None and 400 <= status < 500 and status != 499 and status not in _FLEET_STATUSES:
        return None
    broken = cause in _BROKEN or (status is not None and status >= 400)
    cut_off = cause == _CUT_OFF and not broken
    if outcome.get("ttft_ms") is None and (cut_off or (cause in _UNSEEN and status is None)):
        return None
    left = cut_off or cause == _CLIENT_LEFT or status == 499
    answer_tokens = outcome.get("completion_tokens")
    return Sample(
        **common,
        ended_wall_s=float(outcome["at"]),
        endpoint=str(outcome.get("served") or outcome["endpoint"]),
        ttft_ms=_number(outcome.get("ttft_ms")),
        e2e_ms=_number(outcome.get("e2e_ms")),
        itl_ms=_number(outcome.get("itl_ms")),
        answer_tokens=None if answer_tokens is None else int(answer_tokens) // outcome.get("answers", 1),
        failed=broken and not left,
        censored=left,
    )


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no time")
    return number


class SampleFeed(Feed[Sample]):
    """New samples of a folder, of what was decided after the first start.

    Args:
        folder: of the flight recorder; may not exist yet.
        policy: samples of other policies are passed over.
        report: takes sentences for the log, each once.
        state: where an earlier feed was; None to begin at the end of what is there.
    """

    def __init__(
        self, folder: Path, *, policy: str, report: Callable[[str], None], state: FeedState | None = None
    ) -> None:
        self._policy = policy
        super().__init__(folder, report=report, state=state)

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a sample needs."""
        if record["basis"] != "policy" or record["policy"] != self._policy:
            return None
        return {
            **{key: record[key] for key in _KEPT if key in record},
            "request": {"prompt_tokens": int(record["request"]["prompt_tokens"])},
            "endpoints": [str(record["endpoints"][record["chosen"]])],
            "chosen": 0,
        }

    def make(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Sample | None:
        """Return the sample; None from a picker whose clock runs ahead."""
        if kept["at"] - now_wall_s > _AHEAD_S:
            self.report_once(
                f"requests are dated more than {_AHEAD_S:.0f} s ahead of this machine's clock and do not "
                "count: synchronise the clocks of pickers and tuner"
            )
            return None
        return sample_of(kept, outcome, now_wall_s)
