"""`epp learn status`: samples, the model in force, the last round, and the trial, for people.

Everything comes from files, so that it can be asked on any machine that sees the shared folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.learn.reward_model.guard import WORDS
from epp.learn.sidecar.process import ago, running
from epp.learn.tuner.watch import Watch, comparison
from epp.records.files import DAMAGED
from epp.server.files import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.learn.sidecar.files import ModelPaths


def status_lines(paths: ModelPaths, now_wall_s: float) -> list[str]:
    """Write the learner's part of the answer."""
    lines = [f"learner: {running(paths.lock, paths.status, now_wall_s)}"]
    try:
        facts: dict[str, Any] = msgspec.json.decode(read_file(paths.status) or b"{}")
    except (OSError, *DAMAGED):
        facts = {}
    if not facts:
        return [*lines, f"no status beside {paths.model}: no learner has run on this file"]
    lines += [
        f"requests seen: {facts['seen']}; {facts['damaged']} lines were damaged",
        f"kept: {facts['recent']} newest, {facts['older']} older; {facts['waiting']} under way",
        f"rounds: {facts['rounds']}, {facts['passed']} passed the gate; next in {facts['missing']} requests",
    ]
    model = facts["model"]
    if model is None:
        lines.append("model: none in force, the heuristic decides")
    else:
        price = model["congestion_ms"]
        lines.append(
            f"model: {model['version']}, round {model['round']}, {model['samples']} samples, trained "
            f"{ago(now_wall_s - model['trained_at_s'])}; predicts {' and '.join(model['heads'])}"
            + (f"; classes {', '.join(map(repr, model['classes']))}" if model["classes"] else "")
            + (f"; a token to compute takes {price:.2g} ms from others" if price else "")
        )
    if facts["guard"] is not None:
        lines += _guard_lines(facts["guard"])
    if facts["last"] is not None:
        lines += round_lines(facts["last"])
    return lines


def _guard_lines(guard: Mapping[str, Any]) -> Iterator[str]:
    """Write how the whole fleet does under models, beside the heuristic."""
    for name, watch in msgspec.convert(guard["watches"], dict[str, Watch]).items():
        what, of = WORDS[name]
        line = f"guard: {of}, {guard['heuristic_blocks'][name]} blocks of the heuristic"
        if watch.blocks:
            found = comparison(watch, "under the heuristic at that load", what)
            line += f"; under models {found}; evidence {watch.evidence:.2g}"
        if watch.alone:
            line += f"; {watch.alone} without comparison"
        yield line
    if guard["retreats"]:
        held = f"; models are held back for {guard['held_s']:.0f} s more" if guard["held_s"] else ""
        yield f"  retreats to the heuristic: {guard['retreats']}{held}"
    if guard["heuristics_turn"]:
        yield "  it is the heuristic's turn: its blocks keep the comparison fresh"


def round_lines(held: Mapping[str, Any]) -> Iterator[str]:
    """Write a round, given as plain values."""
    verdict, figures = held["verdict"], held["verdict"]["figures"]
    of = f"trained on {held['trained']} samples ({held['replayed']} older), judged on {held['held_out']}"
    yield f"round {held['number']}: {of}: {verdict['reason']}"
    if held["withdrawn"]:
        yield "  the model in force was withdrawn"
    if "error_ms" in figures:
        against = f", one number {figures['constant_error_ms']:.1f} ms"
        if "incumbent_error_ms" in figures:
            against = f", the incumbent {figures['incumbent_error_ms']:.1f} ms" + against
        yield f"  held-out error: {figures['error_ms']:.1f} ms{against}"
    if "choices" in figures:
        yield (
            f"  off policy, {figures['choices']:.0f} logged choices, "
            f"{figures['effective_samples']:.0f} effective: logged {figures['logged_cost_ms']:.1f} ms, "
            f"the model {figures['cost_rise_ms']:+.1f} ms "
            f"(standard error {figures['cost_rise_error_ms']:.1f})"
        )
    if "regret_ms" in figures:
        yield (
            f"  regret: the heuristic would have cost {-figures['regret_ms']:+.1f} ms (standard error "
            f"{figures['regret_error_ms']:.1f}, {figures['regret_effective_samples']:.0f} effective)"
        )
    if held["calibration"]:
        shown = ", ".join(f"{predicted:.0f}/{seen:.0f}" for predicted, seen in held["calibration"])
        yield f"  calibration, predicted/seen ms by tenths of the predictions: {shown}"
