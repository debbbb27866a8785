"""Usage is found in any answer, however it was cut, and nothing that an engine sends raises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.apis.usage import NO_USAGE, Usage, UsageReader

if TYPE_CHECKING:
    from collections.abc import Iterable

CHAT = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def read(pieces: Iterable[bytes]) -> Usage:
    reader = UsageReader()
    for piece in pieces:
        reader.feed(piece)
    return reader.usage


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (CHAT, Usage(12, 3, None)),
        (CHAT | {"prompt_tokens_details": {"cached_tokens": 0}}, Usage(12, 3, 0)),
        (CHAT | {"prompt_tokens_details": None}, Usage(12, 3, None)),
        (CHAT | {"prompt_tokens_details": {"cached_tokens": "8"}}, Usage(12, 3, None)),
        ({"prompt_tokens": True, "completion_tokens": -1}, Usage(None, -1, None)),
        ({"input_tokens": 9, "cache_read_input_tokens": -4}, Usage(5, None, -4)),
        ({"prompt_tokens": 12.0, "completion_tokens": 1.5}, Usage(12, None, None)),
        ({"prompt_tokens": 1 << 70, "completion_tokens": [3]}, NO_USAGE),
        (
            {"input_tokens": 20, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 16}},
            Usage(20, 4, 16),
        ),
        (
            {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 2},
            Usage(20, 2, 16),
        ),
        ({}, NO_USAGE),
    ],
)
def test_what_the_fields_mean(fields: dict[str, object], expected: Usage) -> None:
    assert read([json.dumps({"choices": [], "usage": fields}, indent=1).encode()]) == expected
