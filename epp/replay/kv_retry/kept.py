"""Finished draws in a folder, so that a comparison that was cut off goes on where it was.

Owns the files: one a draw, replaced as a whole, with every policy's figures in it. Figures are taken again
only where they were made by the same version of this program with the same weights and parameters.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from epp import __version__
from epp.decide.record_files import DAMAGED
from epp.errors import EppError
from epp.policies.registry import create
from epp.replay.kv_retry.cell import CellFigures, RetryTask, run_retry

if TYPE_CHECKING:
    from pathlib import Path

    from epp.replay.simulate import PolicyChoice


class _Kept(msgspec.Struct, frozen=True):
    """One draw's file: by policy, how it was made and its figures."""

    made_by: dict[str, str]
    cells: dict[str, list[CellFigures]]


@dataclass(frozen=True, slots=True)
class KeptTask:
    """A draw whose figures are kept.

    Attributes:
        task: what to run.
        folder: where; it is made.
    """

    task: RetryTask
    folder: Path


def run_kept(kept: KeptTask) -> list[list[CellFigures]]:
    """As `run_retry`; runs only what the folder does not have.

    Raises:
        EppError: the folder cannot be read or written, or holds something else.
    """
    task = kept.task
    path = kept.folder / f"{'shared-' if task.shared else ''}{task.seed}.json"
    made_by = {policy.name: _made_by(policy) for policy in task.policies}
    try:
        found = _read(path)
        missing = tuple(p for p in task.policies if found.made_by.get(p.name) != made_by[p.name])
        if missing:
            runs = run_retry(replace(task, policies=missing))
            fresh = {policy.name: run for policy, run in zip(missing, runs, strict=True)}
            found = _Kept({**found.made_by, **made_by}, {**found.cells, **fresh})
            kept.folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(msgspec.json.encode(found))
            temporary.replace(path)
    except OSError as error:
        raise EppError(f"{path}: {error.strerror}") from error
    return [found.cells[policy.name] for policy in task.policies]


def _read(path: Path) -> _Kept:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return _Kept({}, {})
    except DAMAGED as error:
        raise EppError(f"{path} holds no finished draw: {error}") from error


def _made_by(policy: PolicyChoice) -> str:
    """What its figures depend on beside the draw."""
    made = create(policy.name, policy.params)
    weights = {name: spec.default for name, spec in made.weight_specs.items()} | dict(policy.weights)
    return f"{__version__} {sorted(weights.items())} {made!r}"  # all parameters: defaults change, too
