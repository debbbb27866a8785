"""What an engine says of a request that it failed: an error of any API, read to a status and a word.

Owns the shapes of errors: with an HTTP status of their own, as the body of a 200, as an event of a stream,
and as the reason for which a generation ended. Knows no transport. The end of the text may be missing. Text
that a model wrote is no error: its quotes are escaped, and what it put into the arguments of a tool stands
deeper than an error does.
"""

from __future__ import annotations

import re

from msgspec import Struct

from epp.apis.events import FAILING, LINE_BYTES

MODEL_NOT_FOUND = "model_not_found"
"""Code of a failure by which an engine says that it has no such model or adapter, whatever its own word."""

_MAX_CODE = 64
#: A name with its colon or a text, the ends of objects and lists, a bare word; none that the text cuts off.
_TOKEN = re.compile(
    rb'"((?:[^"\\]|\\.)*+)"\s*+(?:(:)|(?=[,}\]]))|([{\[])|([}\]])|([^\s"{}\[\]:,]++)(?=\s*+[,}\]])', re.DOTALL
)
#: Reasons for which a generation ended that say that it failed.
_FAILED = frozenset({"abort", "error"})
#: Where such a reason stands: in a choice, in what tells of the answer, or alone.
_REASON = re.compile(r"\.?(?:choices\.\.|meta_info\.)?finish_reason(?:\.type)?")
#: Members that say of what kind an error is, best first.
_CODES = ("code", "type", "error_type", "err_type")
_NUMBERS = ("code", "status_code", "status")
#: Status of an error that tells none, by what its code contains; any other is the engine's own fault.
_STATUSES = (
    ("overload", 529),
    ("ratelimit", 429),
    ("toomanyrequests", 429),
    ("unavailable", 503),
    ("notfound", 404),
    ("invalid", 400),
    ("badrequest", 400),
    ("validation", 400),
    ("contextlength", 400),
)
#: vLLM, LMDeploy, Dynamo and llama.cpp say it of models, SGLang of adapters.
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,600}\bnot (?:exist|found)"
    r"|\b(?:lora|adapters?)\b.{0,600}\bnot (?:exist|found|loaded|enabled)",
    re.IGNORECASE | re.DOTALL,
)
_FAILED_EVENT = re.compile(rb"event: ?error|data:.*?(?:%b)" % FAILING.pattern)
_EMPTY = frozenset({"", "null", "false"})


class AnswerFailure(Struct, frozen=True):
    """An engine's word that it failed a request.

    Attributes:
        status: the HTTP status of the answer; of a failure inside a 200 the one that the error tells or
            means, 500 where it means none.
        code: the engine's word for it, `MODEL_NOT_FOUND` where it has no such model, ``""`` for none.
    """

    status: int
    code: str


def failure_in(text: bytes, status: int = 200) -> AnswerFailure | None:
    """Return the failure in one JSON object, None where it tells of none.

    Args:
        text: an answer's body, or the data of an event, or what is kept of it; ``event: error`` of an event
            without data.
        status: the answer's HTTP status; from 400 on it is a failure whatever the body says.
    """
    if text.startswith(b"event:"):
        return AnswerFailure(500, "")  # Dynamo says no more than that
    told = _scalars(text)
    where = _place(told)
    if where is None and status < 400:
        return None
    where = where or ""
    words = [told.get(where + name, "") for name in _CODES] + [told.get(where[:-1] or "type", "")]
    code = next((word for word in words if word not in _EMPTY and not word.isdigit()), "")
    message = told.get(where + "message", "") or told.get("error", "")
    if status < 400:
        numbers = [int(word) for name in _NUMBERS if (word := told.get(where + name, "")).isdigit()]
        status = next((number for number in numbers if 400 <= number < 600), 0) or _status_of(code or message)
    if status < 500 and (code == MODEL_NOT_FOUND or _NO_MODEL.search(message)):
        code = MODEL_NOT_FOUND
    return AnswerFailure(status, code[:_MAX_CODE])


def last_failure(events: bytes) -> AnswerFailure | None:
    """Return the failure in a part of an event stream, the last of several."""
    found = None
    if b"error" in events or b"abort" in events:
        for line in events.split(b"\n"):
            if _FAILED_EVENT.match(line):
                found = failure_in(line.removeprefix(b"data:")[:LINE_BYTES]) or found
    return found


def _place(told: dict[str, str]) -> str | None:
    """Return the path of what tells of a failure, with a dot at its end, None where nothing does."""
    if told.get("type") == "response.failed":
        return "response.error."
    if any(name.startswith("error.") for name in told):
        return "error."
    if told.get("error", "") not in _EMPTY or "error" in (told.get("type"), told.get("object")):
        return ""
    for name, word in told.items():
        if word in _FAILED and _REASON.fullmatch(name):
            return name.removesuffix(".type") + "."
    return None


def _status_of(words: str) -> int:
    plain = "".join(filter(str.isalnum, words)).lower()
    return next((status for word, status in _STATUSES if word in plain), 500)


def _scalars(text: bytes) -> dict[str, str]:
    """Return the first scalars of an object by the path of names to them, what lists hold without a name."""
    found: dict[str, str] = {}
    path: list[str] = []
    key = ""
    for text_of, colon, opening, closing, bare in _TOKEN.findall(text):
        if colon:
            key = text_of.decode("utf-8", "replace")
        elif opening:
            path.append(key)
            key = ""
        elif closing:
            if path:
                path.pop()
        elif text_of or bare:
            name, word = ".".join((*path[1:], key)), (text_of or bare).decode("utf-8", "replace")
            if name not in found or word in _FAILED:
                found[name] = word
            key = ""
    return found
