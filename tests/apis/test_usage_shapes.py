"""Usage as each API tells it, streamed and whole, cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.usage import Usage, UsageReader
from tests.kit.apis import APIS

LONG_TEXT = 'he said "usage": {"input_tokens": 9} and "meta_info": {"prompt_tokens": 1} ' * 3


def events(*payloads: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in payloads) + b"data: [DONE]\n\n"


def anthropic_stream(delta_usage: dict[str, int]) -> bytes:
    begun = {
        "input_tokens": 10,
        "cache_read_input_tokens": 90,
        "cache_creation_input_tokens": 5,
        "output_tokens": 1,
    }
    return b"".join(
        f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode()
        for one in (
            {"type": "message_start", "message": {"id": "m", "content": [], "usage": begun}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": LONG_TEXT}},
            {"type": "ping"},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta_usage},
            {"type": "message_stop"},
        )
    )


def meta(name: str, prompt: int, completion: int, cached: int) -> dict[str, Any]:
    finish = {"type": "stop", "matched": "}{"}
    return {"text": LONG_TEXT, "meta_info": {"id": name, "finish_reason": finish, "prompt_tokens": prompt,
            "completion_tokens": completion, "cached_tokens": cached, "e2e_latency": 0.5}}  # fmt: skip


ANSWERS = {
    "messages stream": (anthropic_stream({"output_tokens": 15}), Usage(105, 15, 90)),
    "messages stream, input told again": (
        anthropic_stream({"input_tokens": 10, "output_tokens": 15}),
        Usage(105, 15, 90),
    ),
    "messages stream of vLLM": (
        events({"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 0}}},
               {"type": "message_delta", "usage": {"input_tokens": 20, "output_tokens": 4}}),
        Usage(20, 4, None),
    ),
    "generate batch": (json.dumps([meta("a", 8, 3, 4), meta("b", 9, 2, 0)]).encode(), Usage(17, 5, 4)),
    "generate batch stream": (
        events(*({"index": n, **meta(str(n), 5, step, 1)} for step in (1, 2) for n in range(3))),
        Usage(15, 6, 3),
    ),
    "rank with totals only": (b'{"results": [], "usage": {"total_tokens": 56}}', Usage(56, None, None)),
    **{f"{api.name} stream": api.stream for api in APIS if api.stream},
    **{api.name: api.answer for api in APIS if api.answer},
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
@given(st.data())
def test_every_shape_is_read_however_it_is_cut(name: str, data: st.DataObject) -> None:
    answer, expected = ANSWERS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    reader = UsageReader()
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        reader.feed(answer[start:end])
    assert reader.usage == expected
