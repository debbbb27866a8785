"""The tuner's measurements: kept runs, honest counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.tuner import Part, _run
from bench.tuner_parts import es_paper, perturbed
from bench.tuner_report import page, text_of
from epp.demo.tuner import defaults_of, rules_of
from epp.tuner.es_paper import BOX

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_run_once_is_not_run_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def work(number: int) -> dict[str, Any]:
        ran.append(number)
        return {"number": number}

    part = Part("a part", 1.0, [(str(n), lambda n=n: work(n)) for n in range(3)])  # type: ignore[misc]  # bound now
    assert _run(part, tmp_path, "source", 0.0) == []
    assert [run["number"] for run in _run(part, tmp_path, "source", 60.0)] == [0, 1, 2]
    with (tmp_path / "a-part.jsonl").open("ab") as file:
        file.write(b'{"key": "half a l')
    assert len(_run(part, tmp_path, "source", 0.0)) == 3
    assert len(_run(part, tmp_path, "", 0.0)) == 3
    assert _run(part, tmp_path, "other source", 0.0) == []
    assert ran == [0, 1, 2]


def test_the_published_search_is_a_function_of_its_seed() -> None:
    first, again, other = (es_paper(seed, free=False, duration_s=60.0) for seed in (1, 1, 2))
    assert first == again
    assert first["history"] != other["history"]
    assert len(first["history"]) > 2
    for name, (low, high) in BOX.items():
        assert all(low <= weights[name] <= high for _, weights, _, _ in first["history"])
    assert "<svg" in page({"published": [first, other]})


def test_perturbed_weights_lie_within_bounds_and_differ() -> None:
    bounds = rules_of("gorgo-ms").bounds
    starts = [perturbed("gorgo-ms", seed) for seed in range(20)]
    assert all(low <= start[name] <= high for start in starts for name, (low, high) in bounds.items())
    assert len({tuple(start.values()) for start in starts}) == 20
    assert perturbed("gorgo", 3) == defaults_of("gorgo")


def trial(*, promoted: bool, e2e: float) -> dict[str, Any]:
    logs = {"ttft": [-0.1, -0.1], "e2e": [e2e, e2e]}
    return {
        "promoted": promoted,
        "phase": "probation" if promoted else "baseline",
        "gain": logs,
        "rehearsed": logs,
        "attainable": {"ttft": [-0.2, -0.2], "e2e": [e2e, e2e]},
        "cost": {"ttft_ms": 1.0, "e2e_ms": 1.0},
        "hours": 2.0,
        "requests": 10,
        "pairs": 3,
        "reason": "candidate 1 ended in screen" if not promoted else "promoted",
        "phases": ["screen"],
    }


def test_harm_is_counted_among_promotions_with_a_bound() -> None:
    runs = [trial(promoted=True, e2e=0.05), trial(promoted=True, e2e=-0.05), trial(promoted=False, e2e=0.3)]
    text = text_of({"tuning": runs, "free rider": [], "drift": []})
    assert "2 promoted" in text
    assert "1 of 2, at most 97.5%" in text
    assert "drift: 0 runs" in text


def test_trials_that_are_not_over_say_nothing_of_promotions() -> None:
    running = trial(promoted=False, e2e=0.0) | {"reason": "candidate 1: no harm shown", "phase": "ramp"}
    text = text_of({"free rider": [trial(promoted=False, e2e=0.0), running]})
    assert "promoted 0 of 1 trials that ended" in text
    assert "1" in text.split("still running")[1]


def test_a_drift_that_nobody_noticed_is_told() -> None:
    run = {
        "thawed_h": None,
        "promoted_h": None,
        "worse_h": 1.0,
        "observed_h": 2.0,
        "phase": "frozen",
        "reason": "as before",
    }
    assert "thawed never" in text_of({"drift": [run]})
