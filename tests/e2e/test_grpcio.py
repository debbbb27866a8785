"""The other transport, `listen.transport: grpcio`: what must hold on it for as long as it can be chosen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_full_duplex import LEFT, READ, TOKENS, lost, plays
from tests.kit.duplex import CHAT, Gateway
from tests.kit.picker import CONFIG
from tests.kit.transports import GRPCIO

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.envoy
LISTEN = {**CONFIG["listen"], "transport": GRPCIO}


async def test_answers_are_read_token_by_token(tmp_path: Path) -> None:
    async with Gateway(tmp_path, plays(*TOKENS), observe=READ, listen=LISTEN) as gateway:
        reply = await gateway.ask()
        assert (reply.status, reply.body, reply.cut) == (200, b"".join(TOKENS), False)
        assert (await gateway.outcome())["cause"] == "completed"


async def test_no_answer_of_a_left_stream_is_lost(tmp_path: Path) -> None:
    answer = b"answered at once" * 8
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer)
    body = json.dumps(CHAT | {"messages": [{"role": "user", "content": "x" * 1000}]}).encode()
    async with Gateway(tmp_path, plays(head=head, end=answer), observe=LEFT, listen=LISTEN) as gateway:
        assert await lost(gateway, body, answer, 100) == {"whole": 100}
        assert await gateway.picker.metric("epp_response_sampling_total", observe="leave") == 100
