"""Records of a real picker behind a real Envoy: what was decided runs again, and outlives a crash."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from epp.ops import explain
from epp.records import verify as record_verify
from epp.records.files import read_records, record_files
from tests.kit.picker import CHAT, Serving
from tests.kit.records import command, ended
from tests.kit.replicas import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable
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
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text_of(conversation, turn)}],
            "max_tokens": 2,
            "user": f"person-{conversation}@example.com",
        }
        async with serving.http.post(
            serving.url + CHAT, json=body, headers={"x-session-id": f"session-{conversation}"}
        ) as answer:
            assert answer.status == 200
            usage = (await answer.json())["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
            found[conversation] = (answer.headers["x-served-by"], cached)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("policy", ["gorgo", "session-affinity", "random"])
async def test_what_was_decided_runs_again_to_the_same_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    records = tmp_path / "records"
    async with Serving(tmp_path, policy={"name": policy}) as serving:
        answers = await asyncio.gather(
            *(serving.chat(text_of(number % 7, 0), stream=number % 2 == 0) for number in range(60))
        )
        assert all(status == 200 for status, _ in answers)
        async with serving.http.get(f"{serving.url}/v1/models") as answer:
            assert answer.status == 200
        await until(lambda: ended(records) == 61)
        assert command(record_verify, records) == 0
        assert "61 decisions run again: all identical" in capsys.readouterr().out
        assert command(explain, "--records", records) == 0
        assert "E2E" in capsys.readouterr().out
        assert await serving.picker.metric("epp_records_dropped_total") == 0


async def test_nothing_of_a_client_is_on_file(tmp_path: Path) -> None:
    async with Serving(tmp_path) as serving:
        await turns(serving, 1)
        await until(lambda: ended(tmp_path / "records") == CONVERSATIONS)
    text = b"".join(path.read_bytes() for path in record_files(tmp_path / "records"))
    for word in (b"said", b"things", b"session-", b"person-", b"example.com"):
        assert word not in text
    sessions = {record["session"] for record in read_records(tmp_path / "records") if "session" in record}
    assert len(sessions) == CONVERSATIONS
    assert "" not in sessions


async def until_used(serving: Serving) -> None:
    """Wait until Envoy asks the picker again: each of its workers finds out by itself that it is back."""
    in_a_row = 0
    async with asyncio.timeout(20):
        while in_a_row < 20:
            before = await serving.picker.metric("epp_decisions_total", policy="gorgo")
            await serving.chat("is the picker used again?")
            used = await serving.picker.metric("epp_decisions_total", policy="gorgo") > before
            in_a_row = in_a_row + 1 if used else 0


async def restarted(tmp_path: Path, **records: Any) -> tuple[float, float]:
    """Conversations, kill -9, one more turn: the share that stayed, and the mean cached share."""
    (tmp_path / "secret").write_bytes(b"a secret of this deployment")
    sections: dict[str, Any] = {
        "prefix": {"secret_file": "secret"},
        "records": {"folder": "records", **records},
        **EVEN,
    }
    async with Serving(tmp_path, **sections) as serving:
        for turn in range(TURNS):
            before = await turns(serving, turn)
        assert len({served for served, _ in before.values()}) > 1, "spread"
        await until(lambda: ended(tmp_path / "records") == CONVERSATIONS * TURNS)
        await serving.picker.kill()
        await serving.picker.start()
        await serving.picker.until_ready()
        for replica in serving.replicas:
            await serving.picker.until_metric(
                "epp_endpoint_rtt_seconds", lambda value: value > 0, endpoint=replica.address
            )
        await until_used(serving)
        after = await turns(serving, TURNS)
        stayed = sum(after[number][0] == before[number][0] for number in after) / len(after)
        assert command(record_verify, tmp_path / "records") == 0
        return stayed, sum(cached for _, cached in after.values()) / len(after)


@pytest.mark.parametrize("compress", ["none", "zstd"])
async def test_after_a_crash_conversations_go_where_their_prefixes_are(tmp_path: Path, compress: str) -> None:
    stayed, cached = await restarted(tmp_path, compress=compress)
    assert stayed == 1.0
    assert cached > 0.6


async def test_without_records_to_go_by_they_are_spread_anew(tmp_path: Path) -> None:
    stayed, _ = await restarted(tmp_path, restore_s=0)
    assert stayed < 0.8
