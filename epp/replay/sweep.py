"""How far each policy keeps up: the knee of a load sweep.

Owns the rule. Pure.

A policy keeps up with a load when in most seeds it is not saturated (`epp.replay.measure`) and its E2E p95 is
at most `KNEE_E2E_FACTOR` times its own at the lightest load. The knee is the highest load up to which it
keeps up with all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.replay.document import SweepEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.replay.document import CellEntry, PolicyEntry

KNEE_E2E_FACTOR = 3.0


def sweep_entry(cells: Sequence[CellEntry]) -> SweepEntry:
    """Knees from the cells of a sweep, in rising order of load."""
    loads = [float(cell.load["input_tokens_per_s"]) for cell in cells]
    names = [p.name for p in cells[0].policies]
    knees: dict[str, float | None] = {}
    for name in names:
        entries = [cell.policy(name) for cell in cells]
        kept = 0
        for entry in entries:
            if not keeps_up(entry, entries[0]):
                break
            kept += 1
        knees[name] = loads[kept - 1] if kept else None
    return SweepEntry(
        loads=loads, cells=[c.name for c in cells], knees=knees, conclusion=_sentences(knees, loads)
    )


def keeps_up(entry: PolicyEntry, lightest: PolicyEntry) -> bool:
    """Whether a policy keeps up with a load, given its figures at the lightest."""
    steady = 2 * entry.saturated_seeds <= len(entry.per_seed)
    return steady and entry.e2e_ms["p95"] <= KNEE_E2E_FACTOR * lightest.e2e_ms["p95"]


def _sentences(knees: dict[str, float | None], loads: Sequence[float]) -> list[str]:
    groups: dict[float | None, list[str]] = {}
    for name, knee in knees.items():
        groups.setdefault(knee, []).append(name)
    out = []
    for knee in sorted((k for k in groups if k is not None), reverse=True):
        above = [load for load in loads if load > knee]
        what = f"keeps up to {knee:,.0f} input tokens/s"
        what += f", not to {above[0]:,.0f}" if above else ", the highest load tried"
        out.append(f"{', '.join(groups[knee])}: {what}.")
    if None in groups:
        out.append(f"{', '.join(groups[None])}: does not keep up even at {loads[0]:,.0f} input tokens/s.")
    return out
