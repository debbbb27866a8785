"""A persisted state against the rules of a new start: what no longer fits is moved or dropped, with a note.

`epp.learn.tuner.machine` calls it with the step in progress, before anything is judged or published: of no
state a plan is made that a picker would refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.learn.tuner.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.machine import Run
    from epp.learn.tuner.state import Rules


def clipped(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """Return weights within their bounds, and the names of those that were not; unknown ones are left out."""
    out, moved = {}, []
    for name, (low, high) in rules.bounds.items():
        if name in weights:
            out[name] = min(max(weights[name], low), high)
            if out[name] != weights[name]:
                moved.append(name)
    return out, moved


def fitted(weights: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], list[str]]:
    """Return an incumbent for these rules, and in words what was changed.

    It is clipped, without unknown names, missing ones as they are configured.
    """
    out, moved = clipped({**rules.starting, **weights}, rules)
    changes = [name for name in moved if name in weights]
    changes += [f"{name} is no weight any more" for name in sorted(set(weights) - set(rules.bounds))]
    changes += [f"{name} is new" for name in out if name not in weights]
    return out, changes


def refit(run: Run) -> None:
    """Move the incumbent into its bounds; end what runs beside it where that is outside."""
    state, rules = run.state, run.rules
    incumbent, changes = fitted(state.incumbent, rules)
    beside = [state.candidate, state.previous, state.trial.weights if state.trial is not None else None]
    outside = [name for weights in beside for name in _outside(weights or {}, rules)]
    if not changes and not outside:
        return
    reason = f"bounds have changed: {', '.join(changes or dict.fromkeys(outside))}{run.unproven()}"
    if changes:
        run.adopt(incumbent, "clipped", reason)
    run.drop_candidate()
    run.go("frozen" if state.held else "baseline", reason)


def _outside(weights: Mapping[str, float], rules: Rules) -> list[str]:
    _, moved = clipped(weights, rules)
    return moved + sorted(set(weights) - set(rules.bounds))


def resettle(run: Run) -> None:
    """End what was gathered for another goal. What a rehearsal must promise judges no trial."""
    state, before, now = run.state, run.state.settings.goal, run.settings.goal
    state.settings = run.settings
    # A ramp that has fewer steps by now: on the last of them.
    state.stage = min(state.stage, len(run.settings.stages.ramp_shares))
    names = (name for name in now.__struct_fields__ if name != "promise")
    changed = [name for name in names if getattr(before, name) != getattr(now, name)]
    if not changed:
        return
    reason = f"the goal has changed ({', '.join(changed)}){run.unproven()}"
    state.thresholds, state.fruitless = None, 0
    if "measure" in changed:
        state.watch = Watch(skip_until=state.watch.skip_until)
    run.drop_candidate()
    run.go("frozen" if state.held else "baseline", reason)
