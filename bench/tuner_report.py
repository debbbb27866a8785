"""The tuner's measurements in words and in a page: every figure with its n."""

from __future__ import annotations

import math
from functools import partial
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from epp.replay.report.style import STYLE
from epp.replay.report.svg import Drawing, Scale, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Runs = Sequence[Mapping[str, Any]]

#: What a full measurement has.
TUNING_RUNS, PRODUCTION_RUNS = 200, 24
_LEVEL = 0.05
_HARM = 0.01
_WORTH, _LARGE = 0.01, 0.05
#: What a good formula leaves to win: not to look for more is right.
_LEFT = 0.03
_HERDED = 0.95
_WORDS = 120
_WIDTH, _HEIGHT, _EDGE = 640, 260, 56


def most(k: int, n: int, *, chance: float = _LEVEL) -> float:
    """Clopper and Pearson's one-sided upper bound of a share of which k of n were seen."""
    if k >= n:
        return 1.0
    low, high = k / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        at_most = sum(math.comb(n, i) * middle**i * (1.0 - middle) ** (n - i) for i in range(k + 1))
        low, high = (middle, high) if at_most > chance else (low, middle)
    return high


def text_of(found: Mapping[str, Runs]) -> str:
    """What is known, part by part."""
    tell: dict[str, Callable[[Runs], list[str]]] = {
        "published": _published,
        "window of 64": _published,
        "unbounded": _free,
        "free rider": _rider,
        "played": _played,
        "guard": _guard,
        "optimum": _optimum,
        "attainable": _attainable,
        "tuning": partial(_tuning, wanted=TUNING_RUNS),
        "production": partial(_tuning, wanted=PRODUCTION_RUNS),
        "drift": _drift,
    }
    lines = []
    for name, runs in found.items():
        lines += [f"{name}: {len(runs)} runs", *(f"  {line}" for line in (tell[name](runs) if runs else []))]
    return "\n".join(lines)


def _published(runs: Runs) -> list[str]:
    out = []
    for name in runs[0]["weights"]:
        values = sorted(run["weights"][name] for run in runs)
        out.append(
            f"{name}: {values[0]:.3f} to {values[-1]:.3f}, median {median(values):.3f}, "
            f"a factor of {values[-1] / values[0]:.1f}"
        )
    stopped = sum(bool(run["stopped"]) for run in runs)
    scores = [step[2] for run in runs for step in run["history"]]
    fired = median(len(run["history"]) for run in runs)
    span = f"{min(scores):.2f} to {max(scores):.2f} s"
    out.append(f"{stopped} stopped by themselves; median {fired:g} firings; scores {span}")
    lucky = sum(abs(run["weights"]["queue_weight"] - 0.5) < 0.005 for run in runs)
    out.append(
        f"{lucky} of {len(runs)} end with queue_weight on the box's upper face, where the published one is"
    )
    return out


def _free(runs: Runs) -> list[str]:
    herded = sum(run["found"]["hottest"] >= _HERDED for run in runs)
    out = [f"{herded} of {len(runs)} send at least {_HERDED:.0%} to one replica"]
    for name in ("ttft_p95_ms", "e2e_p95_ms"):
        ratios = [run["found"][name] / run["default"][name] for run in runs]
        out.append(
            f"{name} against published weights, held out: median {median(ratios):.3f}, "
            f"{min(ratios):.3f} to {max(ratios):.3f}"
        )
    shares = [run["found"]["hottest"] for run in runs]
    herd, other = runs[0]["herd"], runs[0]["default"]
    rise = {name: herd[name] / other[name] - 1.0 for name in ("ttft_p95_ms", "e2e_p95_ms")}
    out.append(
        f"all to the nearest there: TTFT p95 {rise['ttft_p95_ms']:+.1%}, E2E p95 {rise['e2e_p95_ms']:+.1%}"
    )
    usual = runs[0]["default"]["hottest"]
    out.append(f"share of the hottest replica: median {median(shares):.2f} (published weights {usual:.2f})")
    return out


def _rider(runs: Runs) -> list[str]:
    """Only trials that came to an end say anything of promotion."""
    over = [run for run in runs if run["promoted"] or "ended" in run["reason"]]
    promoted = sum(run["promoted"] for run in over)
    out = [
        f"promoted {promoted} of {len(over)} trials that ended, at most {most(promoted, len(over)):.1%} "
        f"(Clopper-Pearson, one-sided 95 %)"
        if over
        else "no trial ended"
    ]
    out.append(f"still running when time was up: {len(runs) - len(over)}")
    where = [run["phases"][-1] for run in over]
    out += [f"ended in {name}: {where.count(name)}" for name in sorted(set(where))]
    out += [f"e.g. {over[0]['reason']}"] if over else []
    return out


def _played(runs: Runs) -> list[str]:
    """What the blocks say is the truth: they are all that there is."""
    promoted = [run for run in runs if run["promoted"]]
    harmful = [run for run in runs if _worst(run) > _HARM]
    good = [run for run in runs if run["ttft"] < -_WORTH and run["e2e"] <= 0.0]
    large = [run for run in good if run["ttft"] < -_LARGE]
    wrong = [run for run in promoted if _worst(run) > _HARM]
    out = [f"{len({run['cell'] for run in runs})} cells; bounds: Clopper-Pearson, one-sided 95 %"]
    for what, some in (("with TTFT or E2E p95 truly more than 1 % up", harmful), ("promotions", promoted)):
        found = most(len(wrong), len(some)) if some else 1.0
        out.append(
            f"{what}: {len(some)}, of these promoted in spite of harm {len(wrong)}, at most {found:.1%}"
        )
    for share, some in ((_WORTH, good), (_LARGE, large)):
        won = sum(run["promoted"] for run in some)
        out.append(
            f"truly better in TTFT by more than {share:.0%}, E2E not worse: {len(some)}, promoted {won}"
        )
    if promoted:
        pairs = sorted(run["pairs"] for run in promoted)
        out.append(f"pairs until a promotion: median {median(pairs):g}, {pairs[0]} to {pairs[-1]}")
    for run in wrong:
        ttft, e2e = (100.0 * math.expm1(run[name]) for name in ("ttft", "e2e"))
        names = f"{run['cell']}: {run['incumbent']} -> {run['candidate']}"
        out.append(f"harmful: {names}: TTFT {ttft:+.1f} %, E2E {e2e:+.1f} %")
    return out


def _worst(run: Mapping[str, Any]) -> float:
    return max(math.expm1(run["ttft"]), math.expm1(run["e2e"]))


def _guard(runs: Runs) -> list[str]:
    kinds = {(run["load"], run["harm"], run["baseline_s"]) for run in runs}
    out = []
    for load, harm, baseline_s in sorted(kinds):
        some = [r for r in runs if (r["load"], r["harm"], r["baseline_s"]) == (load, harm, baseline_s)]
        ended = sorted(run["ended_s"] / 60.0 for run in some if run["ended_s"] is not None)
        passed = sum(run["passed_over"] for run in some) / len(some)
        words = f"{load}, {baseline_s / 60.0:g} min of baseline: "
        if harm == 1.0:
            words += (
                f"without harm ended {len(ended)} of {len(some)}, at most {most(len(ended), len(some)):.1%}"
            )
        else:
            when = f", after {median(ended):.0f} min in the median" if ended else ""
            words += f"all requests {harm:g} times as dear: ended {len(ended)} of {len(some)}{when}"
        out.append(f"{words}; {passed:.0%} of blocks had nothing to be compared with")
    return out


def _optimum(runs: Runs) -> list[str]:
    return [f"{len(runs)} cells and policies searched; used for the share of the attainable gain"]


def _attainable(runs: Runs) -> list[str]:
    return [f"of {len(runs)} starts; used above"]


def _tuning(runs: Runs, *, wanted: int) -> list[str]:
    promoted = [run for run in runs if run["promoted"]]
    frozen = sum(run["phase"] == "frozen" for run in runs)
    cells = len({run["cell"] for run in runs})
    left = len(runs) - len(promoted) - frozen
    ends = f"{len(promoted)} promoted, {frozen} froze, {left} not over"
    out = [f"{len(runs)} of {wanted} runs; {cells} cells; {ends}"]
    if promoted:
        harmed = sum(max(_mean(run["gain"]["ttft"]), _mean(run["gain"]["e2e"])) > _HARM for run in promoted)
        out.append(
            "promotions that make TTFT or E2E p95 worse by more than 1 % (mean of "
            f"{len(promoted[0]['gain']['ttft'])} windows held out): {harmed} of {len(promoted)}, "
            f"at most {most(harmed, len(promoted)):.1%}; of all runs at most {most(harmed, len(runs)):.1%}"
        )
        for name in ("ttft", "e2e"):
            means = sorted(100.0 * math.expm1(_mean(run["gain"][name])) for run in promoted)
            out.append(
                f"{name} p95 of promotions, held out: median {median(means):+.1f} %, "
                f"{means[0]:+.1f} to {means[-1]:+.1f} %"
            )
    out += _shares(runs)
    priced = [run for run in runs if "cost" in run]
    for name in ("ttft_ms", "e2e_ms"):
        costs = [run["cost"][name] for run in priced]
        if costs:
            out.append(
                f"{name} p95 until the end, against the start's weights ({len(costs)} runs): median "
                f"{median(costs):.3f}, worst {max(costs):.3f}"
            )
    return [*out, *(_one(run) for run in runs)]


def _shares(runs: Runs) -> list[str]:
    """Of the attainable gain: of all, where a freeze with little to win is right; where there was more."""
    known = [run for run in runs if "attainable" in run]
    if not known:
        return []
    winnable = [run for run in known if _price(run["attainable"]) < -_WORTH]
    large = [run for run in winnable if _price(run["attainable"]) < -_LARGE]
    of_all = median(_found(run, enough=_LEFT) for run in known)
    right = f"all of it where a run froze with {_LEFT:.0%} or less to win"
    out = [f"share of the attainable gain, {right}: median {of_all:.0%} of {len(known)} runs"]
    for what, some in ((f"{_WORTH:.0%}", winnable), (f"{_LARGE:.0%}", large)):
        if some:
            out.append(
                f"the same where more than {what} could be won, and a freeze wins nothing: median "
                f"{median(_found(run) for run in some):.0%} of {len(some)} runs"
            )
    return out


def _found(run: Mapping[str, Any], *, enough: float = 0.0) -> float:
    """The share of what the optimum would have won, by the windows that it was judged on."""
    best = _price(run["attainable"])
    if not run["promoted"]:
        return 1.0 if run["phase"] == "frozen" and best >= -enough else 0.0
    windows = len(run["attainable"]["ttft"])
    won = _price({name: logs[:windows] for name, logs in run["gain"].items()})
    return won / best if best < 0.0 else float(won <= best)


def _one(run: Mapping[str, Any]) -> str:
    parts = []
    for key in ("gain", "attainable"):
        if key in run:
            words = f"TTFT {_percent(run[key]['ttft'])}, E2E {_percent(run[key]['e2e'])}"
            parts.append(words if key == "gain" else f"(attainable {words})")
    how = f"{run['hours']:.1f} h, {run['requests']} requests, {run['pairs']} pairs"
    words = " ".join(parts)
    return f"{run['cell']}, {run['policy']}: {how}; {words}: {run['reason'][:_WORDS]}"


def _drift(runs: Runs) -> list[str]:
    out = []
    for run in runs:
        thawed, promoted, frozen = (_hours(run[f"{name}_h"]) for name in ("thawed", "promoted", "frozen"))
        out.append(f"{run['what']}: thawed {thawed}, promoted {promoted}, frozen again {frozen}")
        worse, observed = f"{run['worse_h']:.1f}", f"{run['observed_h']:.1f}"
        out.append(f"  more than 5 % worse than the frozen defaults: {worse} of {observed} h")
        last, ratio = f"{run['last_worse_h']:.1f}", f"{run['ratio']:.3f}"
        out.append(f"  the last time {last} h after the change; over all x {ratio}")
        before, after = _both(run["before"]), _both(run["after"])
        out.append(f"  held out, against the defaults: weights of before {before}, of the end {after}")
        out.append(f"  last: {run['phase']}: {run['reason'][:_WORDS]}")
    return out


def _both(found: Mapping[str, Sequence[float]]) -> str:
    return f"TTFT {_percent(found['ttft'])}, E2E {_percent(found['e2e'])}"


def _hours(value: float | None) -> str:
    return "never" if value is None or math.isnan(value) else f"after {value:.1f} h"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _price(found: Mapping[str, Sequence[float]]) -> float:
    return (_mean(found["ttft"]) + _mean(found["e2e"])) / 2.0


def _percent(logs: Sequence[float]) -> str:
    return f"{100.0 * math.expm1(_mean(logs)):+.1f} %"


# ---- the page -----------------------------------------------------------------------------------------


def page(found: Mapping[str, Runs]) -> str:
    """Figures as above, with the published search's trajectory."""
    runs = found.get("published", [])
    plots = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>{svg}</div>'
        for title, svg in (
            ("The published search, first seed: score by firing", _score(runs[0]) if runs else ""),
            ("Weights by firing, first seed", _weights(runs[0]) if runs else ""),
            ("Weights that it ends with, all seeds", _ends(runs) if runs else ""),
        )
        if svg
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>The tuner, measured</title>'
        f"<style>{STYLE}</style></head><body><main><h1>The tuner, measured</h1>"
        f'<div class="grid">{plots}</div>'
        f"<pre>{escape(text_of(found))}</pre></main></body></html>\n"
    )


def _frame(
    label: str, xs: Sequence[float], ys: Sequence[float], *, log: bool
) -> tuple[Drawing, Scale, Scale]:
    drawing = Drawing(_WIDTH, _HEIGHT, label)
    x = Scale(*padded(min(xs), max(xs), log=False), _EDGE, _WIDTH - 20)
    y = Scale(*padded(min(ys), max(ys), log=log), _HEIGHT - _EDGE / 2, 20, log=log)
    for tick in x.ticks():
        drawing.text(x(tick), _HEIGHT - 8, f"{tick:g}", "tick", "middle")
    for tick in y.ticks():
        drawing.line(_EDGE, y(tick), _WIDTH - 20, y(tick), "grid")
        drawing.text(_EDGE - 6, y(tick) + 4, f"{tick:g}", "tick", "end")
    return drawing, x, y


def _score(run: Mapping[str, Any]) -> str:
    steps = [(float(at), float(score), accepted) for at, _, score, accepted in run["history"]]
    drawing, x, y = _frame("score", [s[0] for s in steps], [s[1] for s in steps], log=False)
    drawing.path([(x(at), y(score)) for at, score, _ in steps], "line faint")
    for at, score, accepted in steps:
        drawing.dot(x(at), y(score), 4.0, "mark candidate" if accepted else "mark faint")
    return drawing.render()


def _weights(run: Mapping[str, Any]) -> str:
    values = [v for _, weights, _, _ in run["history"] for v in weights.values()]
    at = [float(step[0]) for step in run["history"]]
    drawing, x, y = _frame("weights", at, values, log=True)
    for place, name in enumerate(run["weights"]):
        points = [(x(float(n)), y(weights[name])) for n, weights, _, _ in run["history"]]
        drawing.path(points, f"line s{place}", name)
        drawing.text(points[-1][0], points[-1][1] - 6, name, f"end s{place}", "end")
    return drawing.render()


def _ends(runs: Runs) -> str:
    points = [(math.log10(r["weights"]["rtt_weight"]), r["weights"]["queue_weight"]) for r in runs]
    drawing, x, y = _frame("final weights", [p[0] for p in points], [p[1] for p in points], log=True)
    for at, queue in points:
        drawing.dot(x(at), y(queue), 5.0, "mark", f"rtt_weight {10**at:.3f}, queue_weight {queue:.3f}")
    drawing.text(_WIDTH - 20, 14, "log10 rtt_weight across, queue_weight up", "hint", "end")
    return drawing.render()
