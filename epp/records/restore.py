"""From the last minutes of records to seeds of the prefix index: who was sent which prefixes.

Reads newest files first and stops when time is up, when every endpoint's cache is accounted for, or when the
records are too old. Only records under this deployment's own key can be used: ids under another name other
prompts.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from epp.errors import EppError
from epp.prefix_cache.warm_index import Seeds
from epp.records.files import DAMAGED, Tail, record_files
from epp.schedule.decision import READABLE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: Ends of requests that never reached an engine.
_NEVER_SERVED = ("refused", "unreachable")


class _Line(msgspec.Struct):
    """What restoring needs of any line."""

    kind: str
    schema: int
    at: float = 0.0
    id: str = ""
    key_id: str = ""
    # of a decision
    endpoints: list[str] = []
    chosen: int = 0
    blocks: list[str] = []
    block_tokens: float = 0.0
    # of an outcome
    endpoint: str = ""
    served: str = ""
    cause: str = ""
    status: int | None = None


@dataclass(slots=True)
class Restored:
    """What was found.

    Attributes:
        seeds: for the index.
        requests: requests that they come from.
        foreign_files: files under another key or schema, passed over.
        complete: False when time ran out first.
    """

    seeds: Seeds
    requests: int = 0
    foreign_files: int = 0
    complete: bool = True


def read_seeds(
    folder: Path,
    *,
    key_id: str,
    since_wall_s: float,
    slots: Mapping[str, int],
    capacities: Mapping[int, float],
    hurry: Callable[[], bool],
) -> Restored:
    """Seeds from a folder of records; damaged lines are passed over.

    Args:
        folder: the folder; one that does not exist has no records.
        key_id: the deployment's `BlockHasher.key_id`.
        since_wall_s: older records are not used.
        slots: slot of each endpoint of the pool.
        capacities: tokens that fit the cache of each slot.
        hurry: whether time is up.
    """
    restored = Restored(Seeds(capacities))

    def time_is_up() -> bool:
        restored.complete = restored.complete and not hurry()
        return not restored.complete

    outcomes: dict[str, _Line] = {}
    try:
        files = record_files(folder)
    except EppError:
        return restored
    for path in reversed(files):
        if restored.seeds.full or time_is_up():
            break
        with contextlib.suppress(OSError, EppError):
            if path.stat().st_mtime < since_wall_s:
                continue
            decisions = _decisions(path, key_id, since_wall_s, outcomes, time_is_up)
            if decisions is None:
                restored.foreign_files += 1
                continue
            for decision in reversed(decisions):
                restored.requests += _add(restored.seeds, decision, outcomes.get(decision.id), slots)
    return restored


def _decisions(
    path: Path, key_id: str, since_wall_s: float, outcomes: dict[str, _Line], hurry: Callable[[], bool]
) -> list[_Line] | None:
    """Decisions of a file with a prompt, oldest first; None when the file is another deployment's."""
    decode = msgspec.json.Decoder(_Line).decode
    decisions: list[_Line] = []
    known = False
    for number, text in enumerate(Tail(path).lines()):
        if number % 256 == 255 and hurry():
            break
        try:
            line = decode(text)
        except DAMAGED:
            continue
        if line.schema not in READABLE_VERSIONS or (line.kind == "file" and line.key_id != key_id):
            return None
        known = known or line.kind == "file"
        if line.kind == "outcome":
            outcomes[line.id] = line
        elif line.kind == "decision" and line.blocks and line.at >= since_wall_s:
            decisions.append(line)
    return decisions if known else None


def _add(seeds: Seeds, decision: _Line, outcome: _Line | None, slots: Mapping[str, int]) -> int:
    if not 0 <= decision.chosen < len(decision.endpoints):
        return 0
    address = decision.endpoints[decision.chosen]
    if outcome is not None:
        if outcome.cause in _NEVER_SERVED or (outcome.status or 0) >= 400:
            return 0
        address = outcome.served or outcome.endpoint or address
    slot = slots.get(address)
    if slot is None:
        return 0
    seeds.add(slot, decision.at, decision.blocks, decision.block_tokens)
    return 1
