"""The files beside a policy's weights file: their names, and the tuner's history as others read it.

One writer each, and all but the weights may be deleted. Beside ``weights.yaml``, which the tuner writes:

* ``weights.lock`` - who the tuner is.
* ``weights.tuner.json``, ``weights.hillclimb.msgpack`` - the memory of the guarded and the published search.
* ``weights.requests.json`` - what operators asked a running tuner for; commands write it, in turns by
  ``weights.requests.lock``.
* ``weights.unreadable`` - a weights file that was found torn, put aside.
* ``weights.last-good-weights.yaml``, ``weights.last-good-overrides.yaml`` - what pickers took last.
* ``overrides.yaml`` - pins; the operator's, whose commands write it in turns by ``overrides.pins.lock``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from epp.errors import EppError
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")


def memory_path(weights: Path) -> Path:
    """Name the file of the tuner's memory, beside the weights."""
    return weights.with_name(f"{weights.stem}.tuner.json")


class WeightsPaths:
    """Paths of the tuner, from the weights file's."""

    def __init__(self, weights: Path) -> None:
        self.weights = weights
        self.lock = weights.with_name(f"{weights.stem}.lock")
        self.memory = memory_path(weights)
        self.hillclimb = weights.with_name(f"{weights.stem}.hillclimb.msgpack")
        self.requests = weights.with_name(f"{weights.stem}.requests.json")
        self.requests_lock = weights.with_name(f"{weights.stem}.requests.lock")
        self.unreadable = weights.with_name(f"{weights.stem}.unreadable")


class Change(msgspec.Struct, frozen=True):
    """One set of weights that was the incumbent.

    Attributes:
        number: counts them, from 0.
        at_wall_s: since when.
        weights: its values.
        how: ``start``, ``promoted``, ``demoted``, ``rolled-back`` or ``clipped``.
        reason: in words.
    """

    number: int
    at_wall_s: float
    weights: dict[str, float]
    how: str
    reason: str


class _State(msgspec.Struct):
    history: list[Change]


class _Memory(msgspec.Struct):
    state: _State


def load_memory(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Read the memory of a sidecar; None when there is none. Nobody begins anew without what it says.

    Args:
        path: of the file.
        decode: raises ValueError, or one of `DAMAGED`, for what is no memory.

    Raises:
        EppError: it cannot be read, is damaged, or is of another version of the program.
    """
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EppError(f"{path}: {error.strerror or error}; this memory must be readable") from error
    except (ValueError, *DAMAGED) as error:
        raise EppError(
            f"{path}: {error}; it is damaged, or of another version of epp: start that version, or "
            "move the file away to begin anew without what it says"
        ) from error


def read_history(paths: WeightsPaths) -> list[Change] | None:
    """Read the incumbents that a tuner remembers, oldest first; None where no tuner has run.

    Raises:
        EppError: its memory is there and cannot be used.
    """
    memory = load_memory(paths.memory, msgspec.json.Decoder(_Memory).decode)
    return None if memory is None else memory.state.history


def history_lines(history: Sequence[Change], now_wall_s: float) -> list[str]:
    """Write one line an incumbent, oldest first."""
    return [
        f"{change.number}: {datetime.fromtimestamp(change.at_wall_s, UTC):%Y-%m-%d %H:%MZ}, "
        f"{ago(now_wall_s - change.at_wall_s)}, {change.how}: {values(change.weights, {})} - {change.reason}"
        for change in history
    ]


def values(weights: Mapping[str, float], pins: Mapping[str, float]) -> str:
    """Write weights in a line; pinned ones as what they are."""
    return ", ".join(
        f"{name}={pins[name]:.4g} (pinned)" if name in pins else f"{name}={value:.4g}"
        for name, value in sorted(weights.items())
    )


def ago(seconds: float) -> str:
    """Say how long something is past."""
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{max(seconds, 0.0):.0f} s ago"
