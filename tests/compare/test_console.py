"""The report: sentences say what the intervals allow and no more, figures stand in their rows."""

from __future__ import annotations

import io
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from epp.lab.compare.console import change, conclusion, progress
from epp.lab.compare.document import AgainstBest, CellEntry, PolicyEntry, compare_policies, sweep_entry
from epp.lab.compare.simulate import Outcome
from tests.compare.test_tune import made


def entry(name: str, role: str, **more: Any) -> PolicyEntry:
    latency = {"mean": 1.0, "p50": 1.0, "p95": more.pop("e2e", 1.0), "p99": 1.0}
    fields: dict[str, Any] = {
        "name": name, "role": role, "weights": {}, "errors": 0, "saturated_seeds": 0, "ttft_ms": latency,
        "e2e_ms": latency, "itl_ms": latency, "slip_ms": latency, "believed_hit_share": 0.5, "true_hit_share": 0.5,
        "share": [1.0], "hottest_share": 1.0, "busy_share": [], "unanswered_share": 0.0, "per_seed": [{}] * 20,
        "ttft_curve_ms": [], "e2e_curve_ms": [], "share_over_time": [], "bin_s": 1.0,
    }  # fmt: skip
    return PolicyEntry(**(fields | more))


def cell(factors: dict[str, float], *, seeds: int = 20, noise: float = 0.02, **changes: Any) -> CellEntry:
    """Policies whose latencies are the candidate's times a factor, with noise of their own."""
    rng = np.random.default_rng(1)
    common = rng.normal(0, 0.2, seeds)
    roles = dict.fromkeys(factors, "baseline") | {"me": "candidate"}
    roles |= {name: "yardstick" for name in factors if name.startswith("oracle")}
    outcomes = {
        name: [
            Outcome(made(float(500 * f * np.exp(c + e)), float(2000 * f * np.exp(c + e))), {})
            for c, e in zip(common, rng.normal(0, noise, seeds), strict=True)
        ]
        for name, f in factors.items()
    }
    return CellEntry(
        name="c",
        load={},
        warmup_s=0.0,
        policies=[entry(name, roles[name], **changes.get(name, {})) for name in factors],
        comparisons=compare_policies(outcomes, roles, by_request=False, seed=1),
        tuning=[],
        conclusion=[],
    )


def said(factors: dict[str, float], margin: float = 0.05, **more: Any) -> str:
    return "\n".join(conclusion(cell(factors, **more).comparisons, "me", margin))


def test_a_clear_winner_is_called_one() -> None:
    text = said({"me": 1.0, "a": 1.3, "b": 1.5})
    assert "E2E p95: me against a, the lowest of the others, -2" in text
    assert "lower than every other policy, by at least" in text


def test_a_winner_by_next_to_nothing_is_said_to_win_by_a_number() -> None:
    assert "lower than every other policy, by at least 0 %." in said({"me": 1.0, "a": 1.0003}, noise=1e-7)


def test_not_inferior_is_said_with_its_bound() -> None:
    text = said({"me": 1.0, "a": 1.0, "b": 1.5})
    assert "not inferior to any by more than 5 %: at most" in text


def test_noise_allows_nothing() -> None:
    text = said({"me": 1.0, "a": 1.0}, noise=0.4)
    assert "no difference from the best is shown, nor non-inferiority within 5 %" in text


def test_a_loser_is_called_one() -> None:
    text = said({"me": 1.3, "a": 1.0})
    assert "; not the best." in text


def test_few_seeds_conclude_nothing_and_some_are_indicative() -> None:
    assert "7 seed(s) cannot carry an interval" in said({"me": 1.0, "a": 1.5}, seeds=7)
    assert "With 8 seeds intervals are indicative only" in said({"me": 1.0, "a": 1.5}, seeds=8)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.88, "-12 %"),
        (1.034, "+3.4 %"),
        (1.0, "0 %"),
        (0.9999, "0 %"),
        (2.5, "+150 %"),
        (float("nan"), "unknown"),
    ],
)
def test_a_ratio_is_a_signed_per_cent(ratio: float, words: str) -> None:
    assert change(ratio) == words


def test_the_knee_is_the_highest_load_up_to_which_a_policy_keeps_up() -> None:
    def at(load: float, **e2e: tuple[float, int]) -> CellEntry:
        policies = [
            entry(name, "baseline", e2e=value, saturated_seeds=late) for name, (value, late) in e2e.items()
        ]
        return CellEntry(
            name=f"x{load}", load={"input_tokens_per_s": load}, warmup_s=0.0, policies=policies, comparisons=[],
            tuning=[], conclusion=[],
        )  # fmt: skip

    sweep = sweep_entry(
        [
            at(10.0, a=(1.0, 0), b=(1.0, 0), c=(1.0, 15)),
            at(20.0, a=(2.0, 0), b=(4.0, 0), c=(1.0, 0)),
            at(30.0, a=(2.5, 10), b=(2.0, 0), c=(1.0, 0)),
        ]
    )
    assert sweep.knees == {"a": 30.0, "b": 10.0, "c": None}


def test_a_bound_that_is_none_survives_the_file() -> None:
    best = msgspec.json.decode(msgspec.json.encode(AgainstBest(1.2, 1.1, math.inf, False)), type=AgainstBest)
    assert best == AgainstBest(1.2, 1.1, None, False)


def test_a_pipe_gets_a_line_every_half_minute() -> None:
    out, now_s = io.StringIO(), 0.0
    with progress(out, time_s=lambda: now_s) as step:
        for now_s in (0.0, 29.0, 31.0, 40.0, 62.0):
            step("runs", int(now_s), 80)
    assert out.getvalue() == "runs: 31 of 80 done\nruns: 62 of 80 done\n"
