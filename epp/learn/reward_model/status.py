"""`epp learn status`: samples, the model in force, the last round, and the trial, for people.

Owns the words. Everything comes from files, so that it can be asked on any machine that sees the shared
folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.learn.tuner.status_command import ago, running
from epp.records.files import DAMAGED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.learn.sidecar.files import Files
    from epp.learn.sidecar.paths import ModelPaths

_BINS_SHOWN = 10


def status_lines(paths: ModelPaths, files: Files, now_wall_s: float) -> list[str]:
    """The learner's part of the answer."""
    lines = [f"learner: {running(paths.lock, paths.status, now_wall_s)}"]
    told = _read(paths, files)
    if told is None:
        return [*lines, f"no status beside {paths.model}: no learner has run on this file"]
    lines += [
        f"requests seen: {told['seen']}; {told['silent']} said nothing, {told['damaged']} lines were damaged",
        f"kept: {told['recent']} newest, {told['older']} older; {told['waiting']} under way",
        f"rounds: {told['rounds']}, {told['passed']} passed the gate; the next in {told['missing']} requests",
    ]
    model = told["model"]
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
    if told["guard"] is not None:
        lines += _guard_lines(told["guard"])
    if told["last"] is not None:
        lines += round_lines(told["last"])
    return lines


def _guard_lines(guard: Mapping[str, float]) -> Iterator[str]:
    """The whole fleet under models against the heuristic."""
    line = f"guard: {guard['heuristic_blocks']:.0f} blocks of the heuristic"
    if guard["fleet_blocks"]:
        line += (
            f"; {guard['fleet_blocks']:.0f} of models: {guard['fleet_slow']:.1%} slow, "
            f"{guard['fleet_expected']:.1%} under the heuristic at that load, "
            f"{guard['fleet_allowed']:.1%} allowed; evidence {guard['fleet_evidence']:.2g}"
        )
    if guard["fleet_blocks_without_comparison"]:
        line += f"; {guard['fleet_blocks_without_comparison']:.0f} without comparison"
    yield line
    if guard["retreats"]:
        held = f"; models are held back for {guard['held_s']:.0f} s more" if guard["held_s"] else ""
        yield f"  retreats to the heuristic: {guard['retreats']:.0f}{held}"
    if guard["heuristics_turn"]:
        yield "  it is the heuristic's turn: its blocks keep the comparison fresh"


def _read(paths: ModelPaths, files: Files) -> dict[str, Any] | None:
    try:
        content = files.read(paths.status)
        told = None if not content else msgspec.json.decode(content)
    except (OSError, *DAMAGED):
        return None
    return told if isinstance(told, dict) else None


def round_lines(held: Mapping[str, Any]) -> list[str]:
    """A round in lines."""
    verdict = held["verdict"]
    of = f"trained on {held['trained']} samples ({held['replayed']} older), judged on {held['held_out']}"
    lines = [f"round {held['round']}: {of}: {verdict['reason']}"]
    if held["withdrawn"]:
        lines.append("  the model in force was withdrawn")
    return [*lines, *_figures(verdict["figures"]), *_watched(held)]


def _figures(figures: Mapping[str, float]) -> Iterator[str]:
    if "error_ms" in figures:
        against = f", one number {figures['constant_error_ms']:.1f} ms"
        if "incumbent_error_ms" in figures:
            against = f", the incumbent {figures['incumbent_error_ms']:.1f} ms" + against
        yield f"  held-out error: {figures['error_ms']:.1f} ms{against}"
    if "choices" in figures:
        snips = f"{figures['snips_cost_ms']:.1f} ms" if "snips_cost_ms" in figures else "not known"
        yield (
            f"  off policy, {figures['choices']:.0f} logged choices, {figures['effective_samples']:.0f} "
            f"effective, overlap {figures['overlap_share']:.0%}: logged {figures['logged_cost_ms']:.1f} ms, "
            f"switch-DR {figures['dr_cost_ms']:.1f} ms "
            f"({figures['cost_rise_ms']:+.1f}, standard error {figures.get('cost_rise_error_ms', 0.0):.1f}), "
            f"SNIPS {snips}"
        )
    elif "effective_samples" in figures:
        yield "  off policy: 0 effective samples"
    if "regret_ms" in figures:
        yield (
            f"  regret: the heuristic would have cost {-figures['regret_ms']:+.1f} ms (standard error "
            f"{figures.get('regret_error_ms', 0.0):.1f}, {figures['regret_effective_samples']:.0f} effective)"
        )


def _watched(held: Mapping[str, Any]) -> Iterator[str]:
    bins = held["calibration"]
    if bins:
        shown = ", ".join(f"{part['predicted_ms']:.0f}/{part['seen_ms']:.0f}" for part in bins[:_BINS_SHOWN])
        yield f"  calibration, predicted/seen ms by tenths of the predictions: {shown}"
    if held["forgetting"]:
        yield (
            f"  forgetting: on {len(held['forgetting'])} past rounds' frozen samples the error is "
            f"{held['forgotten_ms']:+.1f} ms against then"
        )
