"""What learns beside a picker: the tuner of weights, the learner of a reward model, the capability file."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from tests.acceptance.kit import EPP, run, serving, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.kit import Process, Stack

CONFIG = ("--config", "epp.yaml")
#: A baseline of seconds; the rest as it is.
TUNER = {"stages": {"baseline_requests": 20, "baseline_s": 2}}
LEARNER = {
    "network": {"features": ["running_requests", "uncached_tokens", "rtt_ms"], "hidden": [8], "epochs": 4},
    "data": {"first": 40, "every": 40, "recent": 100, "replay": 40},
    "gate": {"held_out": 20, "on": False},
    "trial": TUNER,
}


def begin(stack: Stack, name: str) -> Process:
    """Start `epp tune` or `epp learn` as a sidecar of the picker."""
    words = [*EPP, name, *CONFIG, "--settings", f"{name}.json", "--every", "0.1"]
    return stack.start(name, words)


def status(stack: Stack, name: str) -> str:
    """Ask a sidecar for its status."""
    return stack.epp(name, "status", *CONFIG)


def shown(stack: Stack) -> str:
    """Explain a new request: the weights that chose are in it."""
    decision = stack.chat().headers["x-epp-decision-id"]
    return " ".join(stack.epp("explain", "--url", stack.picker_url, decision).split())


def test_a_tuner_publishes_weights_searches_and_obeys_operators(tmp_path: Path) -> None:
    with serving(tmp_path, "a", policy={"name": "gorgo"}) as stack:
        stack.write("tune.json", TUNER)
        tuner = begin(stack, "tune")
        until(lambda: stack.metric("epp_weights_written_timestamp_seconds") > 0)  # the picker has read it
        assert "a tuner runs on this file already" in stack.epp("tune", *CONFIG, status=2)
        until(lambda: stack.chat() and "baseline -> search" in tuner.log())
        until(lambda: "not enough evidence" in tuner.log())  # a rehearsal wants 400 requests
        stack.epp("weights", "pin", *CONFIG, "rtt_weight=0.11")
        until(lambda: "pinned by the operator: rtt_weight" in tuner.log())
        until(lambda: "rtt_weight 0.11" in shown(stack))
        stack.epp("tune", "freeze", *CONFIG, "--reason", "a fair")
        until(lambda: "-> frozen: by request: a fair" in tuner.log())
        tuner.signal(signal.SIGKILL)
        tuner.wait()
        stack.epp("tune", "thaw", *CONFIG)
        assert "rtt_weight=0.11 (pinned)" in status(stack, "tune")
        again = begin(stack, "tune")
        until(lambda: again.log().count("tuning gorgo") == 2)  # the log of both
        stack.epp("weights", "rollback", "0", *CONFIG)
        until(lambda: "back to number 0 by request" in again.log())
        again.signal(signal.SIGTERM)
        assert again.wait() == 0, again.log()
        assert "phase: frozen" in status(stack, "tune")


def test_a_learner_fits_a_model_which_the_picker_takes_and_a_trial_tries(tmp_path: Path) -> None:
    policy = {"name": "lodestar", "model_file": "reward.json", "params": {"min_samples": 0}}
    with serving(tmp_path, "a", "b", policy=policy) as stack:
        stack.write("learn.json", LEARNER)
        learner = begin(stack, "learn")
        until(lambda: stack.metric("epp_weights_written_timestamp_seconds") > 0)
        until(lambda: stack.chat() and "baseline -> search" in learner.log())
        until(lambda: stack.chat() and "-> screen" in learner.log())
        until(lambda: stack.metric("epp_weight", name="use_model", arm="candidate") == 1)
        assert "use_model = 0" in stack.epp("weights", "show", *CONFIG)  # the heuristic, but for the trial
        until(lambda: stack.metric("epp_reward_model_age_seconds") > 0)
        assert "a learner runs on this file already" in stack.epp("learn", *CONFIG, status=2)
        learner.signal(signal.SIGTERM)
        assert learner.wait() == 0, learner.log()
        version = json.loads((tmp_path / "reward.json").read_text(encoding="utf-8"))["version"]
        said = status(stack, "learn")
        assert "learner: not running" in said
        assert f"model: {version}" in said
        assert "trial: phase: screen" in said


def test_a_fitted_capability_file_routes_by_success(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{n}", "model": model, "language": "en", "prompt_tokens": 9, "correct": right}
        for n in range(400)
        for model, right in (("sim-model", n % 10 != 0), ("small", n % 4 == 0))
    ]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run("capability", "fit", str(answers), "--out", str(tmp_path / "capability.yaml"))
    with serving(tmp_path, "a", policy={"name": "laar"}, capability={"file": "capability.yaml"}) as stack:
        until(lambda: stack.metric("epp_file_ok", file="capability") == 1)
        assert "retry term │ 0.0" not in shown(stack)  # an answer may be wrong, and be asked again
