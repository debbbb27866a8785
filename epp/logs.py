"""The log's form: text lines for people, or one JSON object a line with zap's field names.

Owns formatting, and how often lines are written that a peer can cause by the thousand.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

#: Marks a log call as one that a peer can repeat at will: ``log.warning("...", extra=REPEATED)``.
REPEATED = {"repeated": True}
REPEATED_EVERY_S = 5.0

_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "dpanic"}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The form of the log.

    Attributes:
        level: name of the lowest level shown.
        json: one JSON object a line, as zap writes it, instead of text.
        time: form of times, as `--zap-time-encoding` names it.
    """

    level: str = "INFO"
    json: bool = False
    time: str = "rfc3339"


def configure(settings: LogSettings) -> None:
    """Send the log to standard error in the form asked for; a second call changes it.

    Other libraries log from info on at most: at debug they write bodies and headers, credentials included.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(settings.time) if settings.json else TextLines(settings.time))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=settings.level, handlers=[handler], force=True)
    logging.getLogger("epp").setLevel(settings.level)
    logging.root.setLevel(max(logging.root.level, logging.INFO))


class RateLimit(logging.Filter):
    """Pass one `REPEATED` record of a message every `REPEATED_EVERY_S`; it says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[str, float] = {}
        self._left_out: defaultdict[str, int] = defaultdict(int)

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one record; records without the mark pass."""
        if not hasattr(record, "repeated"):
            return True
        message = record.msg
        if 0.0 <= record.created - self._passed_s.get(message, float("-inf")) < REPEATED_EVERY_S:
            self._left_out[message] += 1
            return False
        self._passed_s[message] = record.created
        if left_out := self._left_out.pop(message, 0):
            record.msg += f" ({left_out} more like this were left out before)"
        return True


def stamp(seconds: float, form: str) -> str | float:
    """Format a moment as `--zap-time-encoding` names its forms.

    Args:
        seconds: Unix time.
        form: ``epoch``, ``millis``, ``nano``, ``iso8601``, ``rfc3339`` or ``rfc3339nano``; in UTC.
    """
    if form == "epoch":
        return seconds
    if form == "millis":
        return seconds * 1e3
    if form == "nano":
        return float(round(seconds * 1e9))
    date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    if form == "iso8601":
        return f"{date}.{int(seconds % 1 * 1e3):03d}Z"
    return f"{date}.{int(seconds % 1 * 1e6):06d}Z" if form == "rfc3339nano" else f"{date}Z"


class TextLines(logging.Formatter):
    """Time, level, logger, message."""

    def __init__(self, time_form: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._time_form = time_form

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        """Format the record's time."""
        return str(stamp(record.created, self._time_form))


class JsonLines(logging.Formatter):
    """``level``, ``ts``, ``logger``, ``msg``, and ``stacktrace`` with an exception."""

    def __init__(self, time_form: str) -> None:
        super().__init__()
        self._time_form = time_form

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        line: dict[str, object] = {
            "level": _LEVELS.get(record.levelname, record.levelname.lower()),
            "ts": stamp(record.created, self._time_form),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
