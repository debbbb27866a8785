"""What was decided and simulated once is decided and simulated again, to the bit.

`data/records` holds 160 decisions of all policies, `data/deployment` 627 of one with poor weights, as recorders wrote
them; `data/digests.json` a digest of each of 20 simulated runs. A change that alters one on purpose says so and
writes the digests again: `python -m tests.acceptance.test_golden`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.kit import run

DATA = Path(__file__).with_name("data")
DIGESTS = DATA / "digests.json"
POLICIES = ("gorgo-ms", "least-request")
LOADS = (
    "demo",
    "art-chat",
    "wild-chat",
    "agent-bursts",
    "agent-sessions",
    "mooncake-chat",
    "shared-50",
    "hot-contexts",
    "toolagent-like",
    "sharing-mixed",
)
#: A learner's network and rounds as small as the deployment's records.
LEARNER = {
    "network": {"features": ["running_requests", "uncached_tokens", "rtt_ms"], "hidden": [8], "epochs": 4},
    "data": {"first": 60, "every": 40, "recent": 100, "replay": 40},
    "gate": {"held_out": 20, "on": False},
}


def digests(load: str, folder: Path) -> dict[str, str]:
    """Simulate a minute of a load under each policy; digest what was measured, but for the series of charts."""
    run(
        *(
            "lab",
            "compare",
            "--workload",
            load,
            "--seconds",
            "60",
            "--warmup",
            "0",
            "--policy",
            ",".join(POLICIES),
        ),
        *("--seeds", "1", "--workers", "1", "--out", str(folder)),
    )
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {
        each["name"]: hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()[:16]
        for each in map(_without_series, results["cells"][0]["policies"])
    }


def _without_series(measured: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in measured.items() if not name.endswith("_over_time_ms")}


@pytest.mark.parametrize("load", LOADS)
def test_a_simulated_run_repeats_to_the_bit(load: str, tmp_path: Path) -> None:
    assert digests(load, tmp_path) == json.loads(DIGESTS.read_text(encoding="utf-8"))[load]


@pytest.mark.parametrize(("folder", "decisions"), [("records", 160), ("deployment", 627)])
def test_recorded_decisions_run_again_identically(folder: str, decisions: int) -> None:
    assert f"{decisions} decisions run again: all identical" in run("records", "verify", str(DATA / folder))


def test_a_tuner_rehearses_on_records() -> None:
    printed = run("tune", "--offline", str(DATA / "deployment"), "--budget", "3", "--json")
    rehearsal = json.loads(printed)
    assert (rehearsal["policy"], rehearsal["requests"], rehearsal["tried"]) == ("gorgo", 627, 3)


def test_a_learner_trains_on_records(tmp_path: Path) -> None:
    settings, model = tmp_path / "learner.yaml", tmp_path / "reward.json"
    settings.write_text(json.dumps(LEARNER), encoding="utf-8")
    words = ("learn", "--offline", str(DATA / "deployment"), "--settings", str(settings))
    assert len(json.loads(run(*words, "--json"))["rounds"]) > 3
    run(*words, "--model", str(model))
    assert json.loads(model.read_text(encoding="utf-8"))


def main() -> int:
    """Write the digests again."""
    with tempfile.TemporaryDirectory() as folder:
        found = {load: digests(load, Path(folder) / load) for load in LOADS}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
