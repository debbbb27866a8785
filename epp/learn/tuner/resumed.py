"""A persisted state against the rules of a new start: what no longer fits is moved, dropped, and told.

Owns what other weights, bounds and goals do to a state. `epp.learn.tuner.machine` calls it with
the step in progress, before anything is judged or published: of no state a plan is made that a picker would
refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.learn.tuner.settings import Goal
from epp.learn.tuner.watch import forget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.machine import Run
    from epp.learn.tuner.state import Rules


def clipped(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """Weights within their bounds, and the names of those that were not. Unknown names are left out."""
    out, moved = {}, []
    for name, (low, high) in rules.bounds.items():
        if name in weights:
            out[name] = min(max(weights[name], low), high)
            if out[name] != weights[name]:
                moved.append(name)
    return out, moved


def fitted(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """An incumbent for these rules: clipped, without unknown names, missing ones as they are configured.

    Returns:
        The weights, and in words what was changed.
    """
    out, moved = clipped({**rules.starting, **weights}, rules)
    changes = [name for name in moved if name in weights]
    changes += [f"{name} is no weight any more" for name in sorted(set(weights) - set(rules.bounds))]
    changes += [f"{name} is new" for name in out if name not in weights]
    return out, changes


def refit(run: Run) -> None:
    """Move the incumbent to where it may be; what runs beside it ends where it is not where it may be."""
    state, rules = run.state, run.rules
    incumbent, changes = fitted(state.incumbent, rules)
    beside = [state.candidate, state.previous, state.trial.weights if state.trial is not None else None]
    found = next((wrong for wrong in (_misfits(weights or {}, rules) for weights in beside) if wrong), [])
    if not changes and not found:
        return
    reason = f"bounds have changed: {', '.join(changes or found)}{run.unproven()}"
    if changes:
        run.adopt(incumbent, "clipped", reason)
    run.drop_candidate()
    run.go("frozen" if state.held else "baseline", reason)


def resettle(run: Run) -> None:
    """Evidence was gathered by the settings of before: end what it does not fit any more."""
    state, before = run.state, run.state.settings
    state.settings = msgspec.to_builtins(run.settings)
    # A ramp that has fewer steps by now: on the last of them.
    state.stage = min(state.stage, len(run.settings.stages.ramp_shares))
    if not before:
        return
    changed = _changed(before.get("goal", {}), run.settings.goal)
    if not changed:
        return
    reason = f"the goal has changed ({', '.join(changed)}){run.unproven()}"
    state.thresholds, state.fruitless = None, 0
    if "measure" in changed:
        state.watch = forget(state.watch)
    run.drop_candidate()
    run.go("frozen" if state.held else "baseline", reason)


def _changed(before: Mapping[str, Any], now: Goal) -> list[str]:
    """Fields of the goal by which a trial is judged differently. What a rehearsal must promise is none."""
    try:
        old = msgspec.convert(before, Goal)
    except msgspec.ValidationError:
        return ["it is not one of this program any more"]
    names = (name for name in Goal.__struct_fields__ if name != "promise")
    return [name for name in names if getattr(old, name) != getattr(now, name)]


def _misfits(weights: Mapping[str, float], rules: Rules) -> list[str]:
    """Names that are out of bounds, or no weights any more."""
    _, moved = clipped(weights, rules)
    return moved + sorted(set(weights) - set(rules.bounds))
