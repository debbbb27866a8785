"""The tuner's measurements: kept runs, honest counts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.tuner import Part, parts, run, with_attainable
from bench.tuner_cells import CELLS, DRIFTS
from bench.tuner_guard import guarded
from bench.tuner_parts import es_paper
from bench.tuner_played import played
from bench.tuner_report import page, text_of
from bench.tuner_runs import perturbed
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
    assert run(part, tmp_path, "source", 0.0) == {}
    assert [found["number"] for found in run(part, tmp_path, "source", 60.0).values()] == [0, 1, 2]
    with (tmp_path / "a-part.jsonl").open("ab") as file:
        file.write(b'{"key": "half a l')
    assert list(run(part, tmp_path, "source", 0.0)) == ["0", "1", "2"]
    assert len(run(part, tmp_path, "", 0.0)) == 3
    assert run(part, tmp_path, "other source", 0.0) == {}
    assert ran == [0, 1, 2]
    more = Part("a part", 1.0, [*part.runs, ("3", lambda: work(3))])
    for _ in range(2):
        assert list(run(more, tmp_path, "source", 60.0)) == ["0", "1", "2", "3"]
    assert ran == [0, 1, 2, 3]
    run(Part("a part", 1.0, [("0", lambda: work(7))]), tmp_path, "newer", 60.0)
    assert run(part, tmp_path, "", 0.0)["0"] == {"number": 7}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench.tuner", "--parts", "tunning"], "no tunning; there are published"),
    ],
)
def test_names_of_nothing_are_refused_before_anything_runs(
    words: list[str], told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words, "--folder", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert told in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_full_plan_is_as_large_as_promised() -> None:
    plan = {part.name: part.runs for part in parts(full=True, best={})}
    assert len(CELLS) == 12
    assert len(plan["published"]) == len(plan["window of 64"]) == len(plan["free rider"]) == 50
    assert len(plan["tuning"]) == 200
    for place in CELLS:
        assert any(label.startswith(place) for label, _ in plan["tuning"][:24])
    assert {label.split(" 0 ")[0] for label, _ in plan["drift"][:4]} == set(DRIFTS)
    for runs in plan.values():
        assert len({label for label, _ in runs}) == len(runs), "a run is found again by its label"


def test_a_played_switchback_knows_good_weights_from_herding() -> None:
    place = "busy chat / three regions"
    found = played(place, "defaults", "herds", 0, pool_s=900.0)
    assert not found["promoted"]
    assert found["e2e"] > 0.01
    assert found == played(place, "defaults", "herds", 0, pool_s=900.0)


def test_the_guard_ends_harm_on_a_queue_and_nothing_else() -> None:
    harmful = guarded("steady", 1, baseline_s=900.0, harm=2.0)
    assert harmful["ended_s"] is not None
    harmless = guarded("steady", 1, baseline_s=900.0, harm=1.0)
    assert harmless["ended_s"] is None
    text = text_of({"guard": [harmful, harmless]})
    assert "2 times as dear: ended 1 of 1" in text
    assert "without harm ended 0 of 1, at most 95.0%" in text


def test_what_could_be_won_is_set_beside_the_run_that_it_belongs_to() -> None:
    run_of, won = trial(promoted=True, e2e=-0.1), {"gain": {"ttft": [-0.3], "e2e": [-0.3]}}
    del run_of["attainable"]
    joined = with_attainable([run_of, run_of | {"seed": 8}], {"a cell | gorgo 7": won})
    assert joined[0]["attainable"] == won["gain"]
    assert "attainable" not in joined[1]
    assert "2 of 200 runs" in text_of({"tuning": joined})


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
        "cell": "a cell",
        "policy": "gorgo",
        "seed": 7,
        "promoted": promoted,
        "phase": "probation" if promoted else "frozen",
        **({"gain": logs} if promoted else {}),
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
    assert "2 promoted, 1 froze, 0 not over" in text
    assert "1 of 2, at most 97.5%" in text
    assert "drift: 0 runs" in text


def test_a_freeze_is_right_where_little_could_be_won() -> None:
    froze, little = trial(promoted=False, e2e=-0.2), trial(promoted=False, e2e=0.16)
    half = trial(promoted=True, e2e=-0.1) | {"attainable": {"ttft": [-0.2], "e2e": [-0.2]}}
    text = text_of({"tuning": [froze, little, half]})
    assert "3% or less to win: median 50% of 3 runs" in text
    assert "more than 1% could be won, and a freeze wins nothing: median 0% of 3 runs" in text
    assert "or less to win: median 100% of 1 runs" in text_of({"production": [little]})
    running = little | {"phase": "switchback"}
    assert "or less to win: median 0% of 1 runs" in text_of({"production": [running]})


def test_trials_that_are_not_over_say_nothing_of_promotions() -> None:
    running = trial(promoted=False, e2e=0.0) | {"reason": "candidate 1: no harm shown", "phase": "ramp"}
    text = text_of({"free rider": [trial(promoted=False, e2e=0.0), running]})
    assert "promoted 0 of 1 trials that ended" in text
    assert "1" in text.split("still running")[1]


def test_a_played_promotion_that_does_harm_is_named() -> None:
    common = {"cell": "a cell", "incumbent": "defaults", "candidate": "herds", "promoted": True, "pairs": 90}
    text = text_of({"played": [common | {"ttft": -0.1, "e2e": 0.1}, common | {"ttft": -0.1, "e2e": -0.1}]})
    assert "promotions: 2, of these promoted in spite of harm 1, at most 97.5%" in text
    assert "harmful: a cell: defaults -> herds: TTFT -9.5 %, E2E +10.5 %" in text


def test_a_drift_that_nobody_noticed_is_told() -> None:
    logs = {"ttft": [0.0], "e2e": [0.0]}
    run = {
        "what": "load triples",
        "thawed_h": None,
        "promoted_h": None,
        "frozen_h": None,
        "worse_h": 1.0,
        "last_worse_h": 2.0,
        "observed_h": 2.0,
        "ratio": 1.02,
        "before": logs,
        "after": logs,
        "phase": "frozen",
        "reason": "as before",
    }
    assert "load triples: thawed never" in text_of({"drift": [run]})
