"""What each event of a streamed answer is, for every API that engines speak: one table for all readers.

`epp.apis.usage` works from it, and `epp/envoy/observe.lua`, which has it as parameters. An event's name is
the ``"type"`` that its data begin with, else its SSE ``event:``. Where the table lacks it, or there is none,
as in chat, completions, ``/generate`` and llama.cpp's own API, the data decide.

Sources: [A] in docs/sources.md.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Kind(StrEnum):
    """Of an event."""

    STRUCTURE = "structure"  # begins or ends a part of the answer, and holds nothing that was generated
    PROGRESS = "progress"  # says that the engine is at work
    CALL = "call"  # structure, but content where it names the tool that a model calls, or has hidden thoughts
    CONTENT = "content"  # text, reasoning, the call of a tool, sound, an image; structure where it is empty
    USAGE = "usage"
    ERROR = "error"  # the request failed
    END = "end"  # the last event


EVENTS = (
    ("content_block_delta", "", Kind.CONTENT),
    ("content_block_start", "", Kind.CALL),
    ("content_block_", "", Kind.STRUCTURE),
    ("message_delta", "", Kind.USAGE),
    ("message_stop", "", Kind.END),
    ("message_", "", Kind.STRUCTURE),
    ("ping", "", Kind.PROGRESS),
    ("error", "", Kind.ERROR),
    ("response.failed", "", Kind.ERROR),
    ("response.completed", "", Kind.END),
    ("response.incomplete", "", Kind.END),
    ("response.output_item.added", "", Kind.CALL),
    ("response.", "delta", Kind.CONTENT),
    ("response.", "partial_image", Kind.CONTENT),
    ("response.", "", Kind.STRUCTURE),
    ("keepalive", "", Kind.PROGRESS),
)
"""Beginning and end of an event's name, and what it is; the first that fits."""

CONTENT = (
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
    "token_ids",
    "output_ids",
    "tokens",
    "transcript",
    "data",
    "images",
)
"""Members that hold what was generated, in events without a name: content, unless all of them are empty."""

DELTAS = ("delta", "text", "thinking", "partial_json")
"""Members that hold it in events with a name: no content where one is an empty text."""

PROGRESS = "prompt_progress"
"""A member that only events of progress have (llama.cpp)."""

FAILURES = (
    ("error", "{"),
    ("error", '"'),
    ("object", '"error"'),
    ("type", '"error"'),
    ("type", '"abort"'),
    ("type", '"response.failed"'),
    ("finish_reason", '"error"'),
    ("finish_reason", '"abort"'),
)
"""A member and how its value begins, one of which is in all that `epp.apis.failure` reads as a failure."""

LINE_BYTES = 2048
"""Most that is read of an event."""


def _members(names: tuple[str, ...], value: str) -> re.Pattern[bytes]:
    return re.compile(rf'"(?:{"|".join(names)})"\s*+:\s*+{value}'.encode())


_GENERATED = _members(CONTENT, r'(?:"[^"]|\[\s*+[^\]\s]|\{\s*+[^}\s])')
_SHAPE = re.compile(rb"\s*+(?:null|\[DONE\])|.*?" + _members(("choices", *CONTENT), "").pattern, re.DOTALL)
_CALLED = _members(("name", "data"), '"[^"]')
_NOTHING = _members(DELTAS, '""')
_TYPE = re.compile(rb'\s*+\{\s*+"type"\s*+:\s*+"([\w.]++)"')
FAILING = re.compile("|".join(rf'"{name}"\s*+:\s*+{re.escape(value)}' for name, value in FAILURES).encode())
"""Where there may be a failure."""


def kind_of(name: str, data: bytes) -> Kind:
    """Return what an event is.

    Args:
        name: its ``event:``, ``""`` without one; what its data begin with goes first.
        data: its ``data:``, or their beginning.
    """
    if told := _TYPE.match(data):
        name = told[1].decode()
    for begins, ends, kind in EVENTS:
        if name.startswith(begins) and name.endswith(ends):
            if kind is Kind.CALL:
                return Kind.CONTENT if _CALLED.search(data) else Kind.STRUCTURE
            if kind is Kind.CONTENT and _NOTHING.search(data):
                return Kind.STRUCTURE
            return kind
    if FAILING.search(data):
        return Kind.ERROR
    if PROGRESS.encode() in data:
        return Kind.PROGRESS
    return Kind.STRUCTURE if _SHAPE.match(data) and not _GENERATED.search(data) else Kind.CONTENT
