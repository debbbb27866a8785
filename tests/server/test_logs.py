"""The log's form: zap's field names and times, or lines for people."""

from __future__ import annotations

import json
import logging

import pytest

from epp.logs import REPEATED, REPEATED_EVERY_S, JsonLines, RateLimit, stamp

AT_S = 1785542400.25


def record(level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("epp.pool", level, "f", 1, "pool: %d endpoints", (3,), None)
    made.created = AT_S
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("epoch", AT_S),
        ("millis", AT_S * 1e3),
        ("nano", AT_S * 1e9),
        ("iso8601", "2026-08-01T00:00:00.250Z"),
        ("rfc3339", "2026-08-01T00:00:00Z"),
        ("rfc3339nano", "2026-08-01T00:00:00.250000Z"),
    ],
)
def test_forms_of_time(form: str, expected: object) -> None:
    assert stamp(AT_S, form) == expected


def test_a_line_of_json() -> None:
    assert json.loads(JsonLines("rfc3339").format(record())) == {
        "level": "warn",
        "ts": "2026-08-01T00:00:00Z",
        "logger": "epp.pool",
        "msg": "pool: 3 endpoints",
    }


def test_lines_that_peers_can_repeat_are_written_every_few_seconds_with_their_number() -> None:
    limit, written = RateLimit(), []
    for at_s, extra in [(0.0, REPEATED), (1.0, REPEATED), (2.0, REPEATED), (3.0, {}), (6.0, REPEATED)]:
        made = record(**extra)
        made.created = AT_S + at_s
        if limit.filter(made):
            written.append((at_s, made.getMessage()))
    assert REPEATED_EVERY_S == 5.0
    assert written == [
        (0.0, "pool: 3 endpoints"),
        (3.0, "pool: 3 endpoints"),
        (6.0, "pool: 3 endpoints (2 more like this were left out before)"),
    ]
