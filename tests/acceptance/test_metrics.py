"""The metrics page: what went through the picker adds up, and names what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import http, serving, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.kit import Stack


def test_requests_add_up(stack: Stack) -> None:
    stack.settle()
    read = stack.metric
    errors = read("llm_d_epp_request_error_total")
    total, decided = read("llm_d_epp_request_total"), read("epp_decisions_total")
    ended, refused = read("epp_outcomes_total"), read("epp_refusals_total")
    picked = read("llm_d_epp_scheduler_attempts_total")
    for number in range(6):
        assert stack.chat(f"question {number}", stream=bool(number % 2)).status == 200
    assert http(f"{stack.url}/v1/chat/completions", "{").status == 400
    until(lambda: read("epp_outcomes_total") == ended + 6)
    assert read("llm_d_epp_request_total") == total + 7
    assert read("epp_decisions_total") == decided + 6
    assert read("llm_d_epp_scheduler_attempts_total") == picked + 6
    assert read("epp_refusals_total", status="400") == refused + 1
    assert read("llm_d_epp_request_error_total", error_code="BadRequest") == errors + 1
    assert read("llm_d_epp_request_running") == 0


def test_usage_and_caches_are_counted_where_engines_report_them(stack: Stack) -> None:
    stack.settle()
    reported = stack.metric("epp_usage_total", known="cached_tokens")
    hits = stack.metric("epp_cache_tokens_total", kind="reported")
    for _ in range(2):
        stack.chat("the same long question " * 100)
    until(lambda: stack.metric("epp_usage_total", known="cached_tokens") == reported + 2)
    assert stack.metric("epp_cache_tokens_total", kind="reported") > hits
    assert stack.metric("llm_d_epp_request_output_tokens_sum") > 0


def test_load_shows_while_a_request_runs_and_goes_with_it(stack: Stack) -> None:
    read = stack.metric
    slow = threading.Thread(target=stack.chat, kwargs={"max_tokens": 100, "stream": True})
    slow.start()
    until(lambda: read("llm_d_epp_inflight_requests") == 1)
    assert read("llm_d_epp_inflight_tokens") > 0
    assert read("epp_requests_in_flight") == 1
    slow.join()
    until(lambda: read("epp_requests_in_flight") == read("llm_d_epp_inflight_requests") == 0)


def test_each_endpoint_shows_its_round_trip_and_fresh_engine_metrics(stack: Stack) -> None:
    for port in stack.ports.values():
        address = f"127.0.0.1:{port}"
        until(partial(stack.metric, "epp_endpoint_rtt_seconds", endpoint=address))
        assert stack.metric("epp_endpoint_engine_age_seconds", endpoint=address) < 5
    assert stack.metric("llm_d_epp_ready_endpoints") == 3


def test_weights_in_force_are_shown_with_where_they_come_from(stack: Stack) -> None:
    assert 'epp_weight{name="' in (text := http(f"{stack.picker_url}/metrics").text)
    assert 'source="default"' in text


def test_a_dead_endpoint_shows_and_its_series_go_when_it_leaves(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", apart=True) as stack:
        dead = f"127.0.0.1:{stack.ports['a']}"
        stack.replicas["a"].stop()
        until(lambda: stack.metric("epp_endpoint_unavailable", endpoint=dead, reason="ejected") == 1)
        assert stack.metric("epp_endpoint_events_total", endpoint=dead, event="probe-failed") >= 2
        assert stack.metric("epp_endpoint_events_total", endpoint=dead, event="ejected") == 1
        assert stack.metric("llm_d_epp_ready_endpoints") == 1
        stack.write_pool("b")
        until(lambda: dead not in http(f"{stack.picker_url}/metrics").text)


@pytest.mark.skipif(
    not (shutil.which("promtool") or os.environ.get("CI")), reason="promtool is not installed"
)
def test_prometheus_accepts_the_page(stack: Stack) -> None:
    page = http(f"{stack.picker_url}/metrics").text
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    # It reads the _d_ of llm-d's prefix as days.
    excused = "metric names should not contain abbreviated units"
    said = (checked.stdout + checked.stderr).splitlines()
    assert [line for line in said if not (line.startswith("llm_d_") and line.endswith(excused))] == []
