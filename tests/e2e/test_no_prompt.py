"""Requests that have no prompt, in every way of speaking ext_proc: they arrive as they were sent, and are balanced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_protocol_modes import CHAT, SPEECHES, no_lease_is_left
from tests.kit.modes import TwoEngines, speaking

if TYPE_CHECKING:
    from pathlib import Path

PREFLIGHT = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type",
}
JSON = {"content-type": "application/json"}
BASES = ("policy", "balance")  # without a body, and with one that nobody reads
#: Method, path, headers, body.
REQUESTS: list[tuple[str, str, dict[str, str], bytes | None]] = [
    ("GET", "/v1/models", {}, None),
    ("GET", "/v1/models/m", JSON, None),
    ("GET", "/health", {}, None),
    ("HEAD", "/health", {}, None),
    ("GET", "/metrics", {}, None),
    ("GET", CHAT, {}, None),
    ("GET", "/v1/responses/resp_1?stream=true", {}, None),
    ("DELETE", "/v1/responses/resp_1", {}, None),
    ("POST", "/v1/responses/resp_1/cancel", JSON, None),
    ("OPTIONS", CHAT, PREFLIGHT, None),
    ("OPTIONS", "/v1/models", PREFLIGHT, None),
    ("OPTIONS", CHAT, JSON, b"{}"),
    ("POST", "/tokenize", JSON, b'{"prompt":"x"}'),
    ("POST", "/flush_cache", {}, None),
    ("POST", "/v1/load_lora_adapter", JSON, b'{"lora_name":"a"}'),
    ("PATCH", "/v1/files/f", JSON, b"{}"),
    ("PURGE", "/v1/messages", JSON, b"{}"),
]


@pytest.mark.parametrize("name", SPEECHES)
async def test_what_has_no_prompt_arrives_as_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speaking(monkeypatch, SPEECHES[name])
    observe = "none" if name.endswith("left") else "all"
    async with TwoEngines(tmp_path, observe=observe) as engines:
        for method, path, headers, body in REQUESTS:
            url = engines.url + path
            async with engines.http.request(method, url, headers=headers, data=body) as answer:
                text = await answer.text()
                assert answer.status == 200, (method, path, text, engines.picker.log()[-3000:])
            got = engines.got[-1]
            assert (got.method, got.path, got.body) == (method, path.partition("?")[0], body or b"")
            assert got.upstream == await engines.picked()
        assert len(engines.got) == len(REQUESTS)
        assert {got.upstream for got in engines.got} == set(engines.addresses)
        decided = sum([await engines.picker.metric("epp_decisions_total", basis=basis) for basis in BASES])
        assert decided == len(REQUESTS)
        await no_lease_is_left(engines)
