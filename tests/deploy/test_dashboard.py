"""Dashboard and alerts against what a running picker really shows, asked of a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.metrics.table import TABLE
from tests.kit.envoy import require_envoy
from tests.kit.picker import Serving
from tests.kit.prometheus import Prometheus, require

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
RUNBOOK = DEPLOY.parent / "docs" / "runbook.md"
RULE_TESTS = RULES.with_name("alerts_test.yaml")
_NAME = re.compile(r"\b(?:llm_d_)?epp_[a-z0-9_]+")


def top() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for each in top() for panel in (each, *each.get("panels", []))]


def panel_queries() -> list[str]:
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    annotations = json.loads(DASHBOARD.read_text())["annotations"]["list"]
    return queries + [annotation["expr"] for annotation in annotations]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def filled_in(query: str) -> str:
    """A dashboard's query as Grafana sends it with every picker chosen."""
    return query.replace("$instance", ".*").replace("$__rate_interval", "5s")


def exposed() -> set[str]:
    """Every name that a query may use."""
    parts = {f"{row.name}_{part}" for row in TABLE if row.bounds for part in ("bucket", "sum", "count")}
    return parts | {row.name for row in TABLE}


@pytest.mark.parametrize("query", [*panel_queries(), *(rule["expr"] for rule in alerts())])
def test_queries_name_only_metrics_that_there_are(query: str) -> None:
    names = set(_NAME.findall(query))
    assert names, "every query is about us"
    assert names <= exposed()


def test_the_overview_is_eight_panels_and_details_are_folded_below_it() -> None:
    first, *rest = top()
    eight, details = rest[:8], rest[8:]
    assert (first["type"], first["title"], first["panels"]) == ("row", "Overview", [])
    assert all(panel["type"] == "timeseries" and panel["description"] for panel in eight)
    assert {panel["gridPos"]["y"] for panel in eight} == {1, 9}
    assert all(row["type"] == "row" and row["collapsed"] and row["panels"] for row in details)


def test_each_alert_is_tested_firing_and_says_what_to_do() -> None:
    fired = set(re.findall(r'alertname="(\w+)"', RULE_TESTS.read_text()))
    assert fired == {rule["alert"] for rule in alerts()}
    sections = re.findall(r"^## (Epp\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["fix"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_promtool_passes_the_rules_and_their_tests() -> None:
    promtool = require("promtool")
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(RULE_TESTS)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


async def ask_on(serving: Serving) -> None:
    """Some traffic for as long as it is wanted: rates need two scrapes with something between them."""
    number = 0
    while True:
        number += 1
        await serving.chat(f"question {number % 3} " * 300, stream=bool(number % 2))
        if number % 5 == 0:
            await serving.chat(messages="not a list")
        await asyncio.sleep(0.02)


async def test_a_real_prometheus_answers_every_query_about_a_running_picker(tmp_path: Path) -> None:
    require("prometheus")
    require_envoy()
    async with (
        Serving(tmp_path) as serving,
        Prometheus(tmp_path / "prometheus", serving.picker.http, [RULES]) as prometheus,
    ):
        traffic = asyncio.ensure_future(ask_on(serving))
        try:
            await prometheus.until("sum(rate(llm_d_epp_request_error_total[5s])) > 0")
            await prometheus.until("sum(rate(epp_outcomes_total[5s])) > 0")
            for query in (*panel_queries(), *(rule["expr"] for rule in alerts())):
                await prometheus.query(filled_in(query))
            by_title = {panel["title"]: panel["targets"] for panel in panels() if panel["type"] != "row"}
            for title in ("Requests", "Errors", "E2E", "Decision cost", "RTT", "Weights in force", "Engine queue",
                          "Health", "In flight", "Share per endpoint"):  # fmt: skip
                for target in by_title[title]:  # a scrape that comes too late leaves gaps
                    await prometheus.until(filled_in(target["expr"]))
            shares = await prometheus.query(filled_in(by_title["Share per endpoint"][0]["expr"]))
            assert sum(float(sample["value"][1]) for sample in shares) == pytest.approx(1.0)
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)
        groups = (await prometheus.get("rules"))["groups"]
        health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        assert set(health) == {rule["alert"] for rule in alerts()}
        assert "err" not in health.values()
