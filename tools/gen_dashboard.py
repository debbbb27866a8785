"""Writes deploy/grafana/dashboard.json: ``python -m tools.gen_dashboard``.

A panel here is one line a query instead of forty of JSON; a test compares the committed file with what this
makes, and asks a real Prometheus every query of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tools.dashboard_panels import ROWS, WHO, Panel

DASHBOARD = Path(__file__).parent.parent / "deploy" / "grafana" / "dashboard.json"

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The whole dashboard in Grafana's model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for at, panel in enumerate(row):
            x = at * _WIDTH % _COLUMNS
            panels.append(_panel(len(panels) + 1, panel, x, y + at * _WIDTH // _COLUMNS * _HEIGHT))
        y += -(-len(row) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "uid": "gorgo-epp",
        "title": "Endpoint picker (gorgo-epp)",
        "tags": ["llm", "gorgo-epp"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "templating": {"list": _variables()},
        "annotations": {"list": [_weight_changes()]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    if panel.stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                "range": True,
            }
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Picker",
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": "label_values(llm_d_epp_info, instance)", "refId": "instance"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "sort": 1,
        },
    ]


def _weight_changes() -> dict[str, Any]:
    written = f"epp_weights_written_timestamp_seconds{WHO}"
    return {
        "name": "Weights changed",
        "datasource": _DATASOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": f"{written} unless {written} offset 1m",
        "titleFormat": "weights {{version}}",
        "textFormat": "{{policy}} on {{instance}}",
        "step": "60s",
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    """Write the file."""
    DASHBOARD.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
