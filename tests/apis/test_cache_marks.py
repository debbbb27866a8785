"""Marks for caching (``cache_control``): they move from turn to turn, and no template sees them."""

from __future__ import annotations

import json
from typing import Any

from tests.apis.test_other_apis import CHAT, RESULT, USE, WEATHER, messages, user


def test_marks_for_caching_and_signatures_move_without_changing_the_prompt() -> None:
    def marked(mark: Any, signature: str) -> bytes:
        thought = {"type": "thinking", "thinking": "t", "signature": signature}
        block = {"type": "text", "text": "a"} | mark
        talk = [user([block]), {"role": "assistant", "content": [thought, USE | mark]}, user([RESULT | mark])]
        return messages(*talk, tools=[WEATHER | mark], system=[block]).canonical

    assert marked({}, "x") == marked({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "y")


def test_marks_for_caching_inside_of_blocks_and_tools_change_nothing() -> None:
    def spoken(mark: dict[str, Any]) -> tuple[bytes, bytes]:
        inner = [{"type": "text", "text": "a", **mark}]
        blocks: list[Any] = [
            {"type": "search_result", "source": "s", "title": "t", "content": inner},
            {"type": "document", "source": {"type": "content", "content": inner}},
            {"type": "tool_result", "tool_use_id": "t", "content": inner},
            {"type": "odd", "content": ["text", 5]},
        ]
        tool = {"type": "function", "function": {"name": "f"}, **mark}
        body = json.dumps({"model": "m", "messages": [user(inner)], "tools": [tool]}).encode()
        return messages(user(blocks)).canonical, CHAT.parse(body, {}).canonical

    assert spoken({}) == spoken({"cache_control": {"type": "ephemeral"}}) != spoken({"other": 1})
