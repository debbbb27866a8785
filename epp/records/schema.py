"""Records read back: a decision as it was, ready to be run again, and the two lines of a request as one.

The fields are described in docs/records.md, one row each; `epp.schedule.decision` writes them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epp.errors import EppError
from epp.schedule.decision import ASKED, ORIGIN, Basis, Decision, QueueWait, legs_of
from epp.types import CACHED_SOURCES, NUMERIC_COLUMNS, RTT_SOURCES, Ranking, RequestInfo, Role, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

#: Decisions that wait for their outcomes while a folder is read; more than are ever in flight at once.
MAX_WAITING = 200_000


class RecordError(EppError):
    """A record does not hold what its schema says."""


class Joined(NamedTuple):
    """One request: its decision, and its outcome when there is one."""

    decision: Mapping[str, Any]
    outcome: Mapping[str, Any] | None


def join(records: Iterable[Mapping[str, Any]]) -> Iterator[Joined]:
    """Requests in the order in which they ended, then those without an outcome.

    Outcomes whose decisions were rotated away are passed over.
    """
    waiting: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
    for record in records:
        if record["kind"] == "decision":
            waiting[record["id"]] = record
            if len(waiting) > MAX_WAITING:
                yield Joined(waiting.popitem(last=False)[1], None)
        elif record["kind"] == "outcome" and record["id"] in waiting:
            yield Joined(waiting.pop(record["id"]), record)
    for decision in waiting.values():
        yield Joined(decision, None)


def decision_of(record: Mapping[str, Any]) -> Decision:
    """The decision that a record was made from, number for number.

    Raises:
        RecordError: the record is not one, or lacks something.
    """
    try:
        return _decision(record)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RecordError(f"record {record.get('id')!r} cannot be read: {error!r}") from error


def _decision(record: Mapping[str, Any]) -> Decision:
    request = record["request"]
    snapshot = _fleet(record)
    costs = _column(record["costs"], len(snapshot))
    terms = {name: _column(values, len(snapshot)) for name, values in record["terms"].items()}
    chosen = record["chosen"]
    if not 0 <= chosen < len(snapshot):
        raise ValueError(f"chosen {chosen} of {len(snapshot)}")
    shares = record["shares"]
    asked = RequestInfo(
        decision_id=record["id"],
        **{name: request[name] for name in ASKED if name in request}
        | {"tried_models": tuple(request["tried_models"])},
        api=record["api"],
        text_bytes=record["text_bytes"],
        **{name: record[name] for name in (*ORIGIN, "sequences", "last_turn") if name in record},
        media=tuple(record.get("media", ())),
    )
    partners = {
        Role(role): np.array(rows, np.intp).reshape(len(snapshot), -1)
        for role, rows in record.get("partners", {}).items()
    }
    ranking = Ranking(costs, terms, record["least_first_token_ms"], partners)
    return Decision(
        at_wall_s=record["at"],
        basis=Basis(record["basis"]),
        policy=record["policy"],
        request=asked,
        snapshot=snapshot,
        weights=record["weights"],
        weights_version=record["weights_version"],
        seed=record["seed"],
        tolerance=record["tie_band"],
        ranking=ranking,
        slow_start_weights=None if shares is None else _column(shares, len(snapshot)),
        legs=legs_of(asked, snapshot, chosen, tuple(record["fallbacks"]), ranking.partners),
        tied=record["tied"],
        slow_start_excluded=tuple(record["held_back"]),
        arm=record["arm"],
        excluded={rule: tuple(names) for rule, names in record["excluded"].items()},
        params=record["params"],
        wait=QueueWait(**record["wait"]) if "wait" in record else None,
    )


def _fleet(record: Mapping[str, Any]) -> Snapshot:
    count = len(record["endpoints"])
    unknown = {}
    for name, rows in record["unknown"].items():
        unknown[name] = np.zeros(count, np.bool_)
        unknown[name][rows] = True
    signals = record["signals"]
    return Snapshot(
        endpoints=tuple(record["endpoints"]),
        regions=tuple(record["regions"]),
        engine_classes=tuple(record["engine_classes"]),
        block=np.array([_column(signals[name], count) for name in NUMERIC_COLUMNS]),
        unknown=unknown,
        rtt_sources=_codes(record["rtt_sources"], RTT_SOURCES, count),
        models=tuple(record["served_models"]),
        extra={name: _column(values, count) for name, values in record.get("extra", {}).items()},
        revisions=tuple(record.get("revisions", ())),
        workers={Role(role): _fleet(seen) for role, seen in record.get("workers", {}).items()},
        cached_sources=(
            _codes(record["cached_sources"], CACHED_SOURCES, count) if "cached_sources" in record else None
        ),
    )


def _codes(rows_by: Mapping[str, list[int]], names: Sequence[str], count: int) -> NDArray[np.int8]:
    codes = np.zeros(count, np.int8)
    for name, rows in rows_by.items():
        codes[rows] = names.index(name)
    return codes


def _column(values: list[float], count: int) -> NDArray[np.float64]:
    column = np.array(values, np.float64)
    if column.shape != (count,):
        raise ValueError(f"{len(values)} values for {count} endpoints")
    return column
