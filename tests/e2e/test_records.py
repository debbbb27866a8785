"""Records of a real picker behind a real Envoy: what was decided runs again, and outlives a crash."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.kit.picker import Serving
from tests.kit.records import command, ended
from tests.kit.replicas import CHAT, chat_body
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CONVERSATIONS, TURNS = 12, 3
#: Without distance and load a policy that prices the prompt has nothing but the prefix to go by.
EVEN = {"policy": {"name": "gorgo", "weights": {"rtt_weight": 0.0, "queue_weight": 0.0}}}


def text_of(conversation: int, turn: int) -> str:
    """A conversation up to a turn: a thousand tokens of its own, and some more each turn."""
    words = " ".join(f"{conversation} said {number} things" for number in range(250))
    return words + "".join(f" and in turn {later} another {later * 7} things" * 20 for later in range(turn))


async def turns(serving: Serving, turn: int) -> dict[int, tuple[str, float]]:
    """One turn of every conversation: who served it, and the share of its prompt that was cached."""
    found = {}
    for conversation in range(CONVERSATIONS):
        body = chat_body(text_of(conversation, turn), max_tokens=2, user=f"person-{conversation}@example.com")
        async with serving.http.post(
            serving.url + CHAT, json=body, headers={"x-session-id": f"session-{conversation}"}
        ) as answer:
            assert answer.status == 200
            usage = (await answer.json())["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
            found[conversation] = (answer.headers["x-served-by"], cached)
    return found


async def until_used(serving: Serving) -> None:
    """Wait until Envoy asks the picker again: each of its workers finds out by itself that it is back."""
    in_a_row = 0
    async with asyncio.timeout(240):
        while in_a_row < 20:
            before = await serving.picker.metric("epp_decisions_total", policy="gorgo")
            await serving.chat("is the picker used again?")
            used = await serving.picker.metric("epp_decisions_total", policy="gorgo") > before
            in_a_row = in_a_row + 1 if used else 0


async def test_after_a_crash_conversations_go_where_their_prefixes_are(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"a secret of this deployment")
    sections: dict[str, Any] = {
        "prefix": {"secret_file": "secret"},
        "records": {"folder": "records", "compress": "zstd"},
        **EVEN,
    }
    async with Serving(tmp_path, **sections) as serving:
        for turn in range(TURNS):
            before = await turns(serving, turn)
        assert len({served for served, _ in before.values()}) > 1, "spread"
        await until(lambda: ended(tmp_path / "records") == CONVERSATIONS * TURNS)
        await serving.picker.kill()
        await serving.picker.start()
        await until(serving.picker.ready)
        for replica in serving.replicas:
            await serving.picker.until_metric(
                "epp_endpoint_rtt_seconds", lambda value: value > 0, endpoint=replica.address
            )
        await until_used(serving)
        after = await turns(serving, TURNS)
        assert all(after[number][0] == before[number][0] for number in after)
        assert command("records", "verify", tmp_path / "records") == 0
        assert sum(cached for _, cached in after.values()) / len(after) > 0.6
