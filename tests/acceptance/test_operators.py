"""What operators ask and change: explanations, records, weights, feedback, checks, configuration errors."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.kit import Stack, http, run, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DECISION = "x-epp-decision-id"


def recorded(stack: Stack) -> list[dict[str, Any]]:
    """Lines of the records on file, a torn last one left out."""
    texts = [file.read_text(encoding="utf-8") for file in sorted((stack.folder / "records").glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def has(stack: Stack, kind: str, decision: str) -> bool:
    """Whether a line of that kind is on file for a decision."""
    return any(line["kind"] == kind and line["id"] == decision for line in recorded(stack) if "id" in line)


def test_a_decision_is_explained_live_and_from_records(stack: Stack) -> None:
    decision = stack.chat("explain this").headers[DECISION]
    live = stack.epp("explain", "--url", stack.picker_url, decision)
    assert decision in live
    assert all(word in live for word in ("cost", "network", "prefill", "waiting"))
    until(lambda: has(stack, "decision", decision))
    assert decision in stack.epp("explain", "--records", "records", decision)


def test_records_are_shown_filtered_followed_and_verified(stack: Stack) -> None:
    decision = stack.chat("on record").headers[DECISION]
    until(lambda: has(stack, "outcome", decision))
    assert "requests" in stack.epp("records", "show", "records")
    assert decision in stack.epp("records", "filter", "--model", "sim-model", "records")
    assert decision not in stack.epp("records", "filter", "--model", "another", "records")
    assert "identical" in stack.epp("records", "verify", "records")


def test_a_changed_record_does_not_verify(stack: Stack, tmp_path: Path) -> None:
    stack.chat("to be changed")
    until(lambda: recorded(stack))
    copy = tmp_path / "records"
    copy.mkdir()
    for file in (stack.folder / "records").glob("*.jsonl*"):
        text = file.read_text(encoding="utf-8")
        (copy / file.name).write_text(text.replace('"costs":[', '"costs":[9'), encoding="utf-8")
    run("records", "verify", str(copy), status=1)


def test_a_damaged_line_does_not_verify_and_a_torn_last_one_does(stack: Stack, tmp_path: Path) -> None:
    stack.chat("to be damaged")
    until(lambda: recorded(stack))
    lines = max((stack.folder / "records").glob("*.jsonl"), key=lambda path: path.stat().st_size)
    copy, text = tmp_path / lines.name, lines.read_text(encoding="utf-8")
    copy.write_text(text + text[:40], encoding="utf-8")
    run("records", "verify", str(copy))
    copy.write_text(text[:40] + "\n" + text, encoding="utf-8")
    assert f"{copy}, line 1" in run("records", "verify", str(copy), status=1)


def test_records_hold_no_prompt(stack: Stack) -> None:
    stack.chat("a very secret sentence")
    until(lambda: recorded(stack))
    assert "secret" not in json.dumps(recorded(stack))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    policy = {"name": "gorgo", "bounds": {"rtt_weight": [0.1, 1.0]}}
    with serving(tmp_path_factory.mktemp("bounded"), "a", policy=policy) as stack:
        yield stack


def test_weights_are_pinned_shown_and_given_back(bounded: Stack) -> None:
    files = ("--config", "epp.yaml")
    bounded.epp("weights", "pin", *files, "rtt_weight=0.5")
    assert "0.5" in bounded.epp("weights", "show", *files)
    until(lambda: "rtt_weight 0.5" in explained(bounded))
    bounded.epp("weights", "unpin", *files, "--all")
    until(lambda: "rtt_weight 0.5" not in explained(bounded))


def explained(stack: Stack) -> str:
    """Explain a new request."""
    decision = stack.chat().headers[DECISION]
    return " ".join(stack.epp("explain", "--url", stack.picker_url, decision).split())


def test_the_operators_word_wins_over_the_tuners_and_neither_leaves_bounds(bounded: Stack) -> None:
    weights = {"policy": "gorgo", "weights": {"rtt_weight": 0.7}}
    bounded.write("weights.yaml", weights)
    until(lambda: "rtt_weight 0.7" in explained(bounded))
    bounded.write("weights.yaml", {"policy": "gorgo", "weights": {"rtt_weight": 50.0}})
    until(lambda: bounded.metric("epp_file_ok", file="weights") == 0)
    assert "rtt_weight 0.7" in explained(bounded)
    bounded.write("overrides.yaml", {"weights": {"rtt_weight": 0.2}})
    until(lambda: "rtt_weight 0.2" in explained(bounded))
    bounded.write("weights.yaml", weights)
    until(lambda: bounded.metric("epp_file_ok", file="weights") == 1)
    (bounded.folder / "weights.yaml").write_text("{torn", encoding="utf-8")
    until(lambda: bounded.metric("epp_file_ok", file="weights") == 0)
    assert "rtt_weight 0.2" in explained(bounded)


def test_a_picker_that_restarts_on_a_torn_file_has_the_last_good_weights(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.start_replicas("a")
        stack.write_pool()
        stack.start_picker(policy={"name": "gorgo"})
        asked = ("weights", "show", "--url", stack.picker_url)
        stack.write("weights.yaml", {"policy": "gorgo", "weights": {"rtt_weight": 0.7}})
        stack.write("overrides.yaml", {"weights": {"queue_weight": 0.2}})
        until(lambda: all(words in stack.epp(*asked) for words in ("0.7  (tuner)", "0.2  (override)")))
        until(lambda: len([*tmp_path.glob("weights.last-good-*")]) == 2)
        (tmp_path / "weights.yaml").write_text("{torn", encoding="utf-8")
        stack.picker.stop()
        stack.start_picker(policy={"name": "gorgo"})
        said = stack.epp(*asked, status=1)
        assert "rtt_weight = 0.7  (tuner)" in said
        assert "the weights file is gone or refused" in said
        assert "0.7" not in stack.epp("weights", "show", "--config", "epp.yaml", status=1)


def test_feedback_reaches_the_records(stack: Stack) -> None:
    decision = stack.chat("was this right?").headers[DECISION]
    stack.epp("feedback", decision, "--correct", "--evaluator", "tests", "--url", stack.picker_url)
    until(lambda: has(stack, "feedback", decision))


def test_the_doctor_finds_a_healthy_deployment_healthy(stack: Stack) -> None:
    printed = stack.epp("doctor", "--config", "epp.yaml", "--envoy-admin", stack.admin, "--json")
    findings = json.loads(printed)
    assert findings["findings"] == []


def test_all_errors_of_a_configuration_and_its_pool_are_said_at_once(tmp_path: Path) -> None:
    config = {
        "policy": {"name": "gorg", "tolerance": "x"},
        "scrape": {"interval_s": -1},
        "pool": {"file": "p.yaml"},
    }
    (tmp_path / "epp.yaml").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "p.yaml").write_text("endpoints: [{address: nowhere}]", encoding="utf-8")
    for command, status in ((("serve",), 2), (("config", "check"), 1)):
        printed = run(*command, "--config", "epp.yaml", status=status, cwd=tmp_path)
        for key in ("policy.name", "policy.tolerance", "scrape.interval_s", "endpoints[0].address"):
            assert len([line for line in printed.splitlines() if key in line]) == 1, printed
        assert "Traceback" not in printed


def test_a_busy_replica_is_left_out_of_a_burst(stack: Stack) -> None:
    def picked(port: int) -> float:
        return stack.metric("llm_d_epp_scheduler_attempts_total", endpoint_name="127.0.0.1", port=str(port))

    before = {port: picked(port) for port in stack.ports.values()}
    threads = [threading.Thread(target=stack.chat, args=(f"{n} " * 300,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = [picked(port) - before[port] for port in stack.ports.values()]
    assert sum(served) == 24
    assert max(served) <= 12


def test_metrics_are_prometheus_text_with_llm_ds_names(stack: Stack) -> None:
    text = http(f"{stack.picker_url}/metrics").text
    assert "# TYPE llm_d_epp_request_total counter" in text
    assert "# TYPE epp_decisions_total counter" in text
