"""Engines that prefill, encode or decode, the last behind a stand-in that behaves as llm-d's sidecar documents.

What it does for ``nixlv2`` (``pkg/sidecar/proxy`` of llm-d's router): first the encoders of `ENCODERS`, then the
prefill at the worker of `PREFILLER` with one token of answer, whose ``kv_transfer_params`` the decode gets. A worker
that cannot be reached is a 502, and an error of a worker is the answer.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from epp.config.pool import EndpointSpec
from tests.kit.engines import Answered, Asked, Engine, EngineServing
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PREFILLER, ENCODERS = "x-prefiller-host-port", "x-encoder-hosts-ports"


def prefilled(_: Asked) -> Answered:
    return Answered([json.dumps({"kv_transfer_params": {"remote_block_ids": [1]}}).encode()])


def decoded(_: Asked) -> Answered:
    return Answered([b'{"choices": [{"message": {"content": "yes"}}], "usage": {"completion_tokens": 1}}'])


@dataclass
class Worker(Engine):
    """An engine with a role.

    Attributes:
        role: of its endpoint.
        ranks: behind it.
        before: awaited once a request is here, before its answer; it may kill.
        labels: of its endpoint.
        metrics: its page of metrics.
        dead: it takes no connections any more.
    """

    role: str = ""
    ranks: int = 1
    before: Callable[[Worker], Awaitable[None]] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metrics: str = ""
    dead: bool = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, one for metrics as well."""
        if request.path == "/metrics" and self.metrics:
            return web.Response(text=self.metrics)
        return await super().serve(request)

    async def heard(self, request: web.Request) -> Asked:
        """Note a request, and do what is to be done then."""
        noted = await super().heard(request)
        if self.before is not None:
            await self.before(self)
            if request.transport is not None and self.dead:
                request.transport.abort()
        return noted

    async def die(self) -> None:
        """Take no connections any more, and end those that there are."""
        self.dead = True
        for site in list(self._runner.sites):
            await site.stop()
        assert isinstance(self._runner.server, web.Server)
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()


@dataclass
class Decoder(Worker):
    """A decode worker behind its sidecar.

    Attributes:
        local: what its engine is asked, in order, with the headers that the sidecar got.
        open: nothing goes on before it is set.
    """

    role: str = "decode"
    local: list[Asked] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Have the parts done, and decode."""
        if request.method != "POST":
            return await super().serve(request)
        asked = await self.heard(request)
        await self.open.wait()
        fields = asked.fields
        for header, one_token in ((ENCODERS, True), (PREFILLER, True)):
            for worker in filter(None, asked.headers.get(header, "").split(",")):
                status, told = await _ask(
                    f"http://{worker}{asked.path}", {**fields, "max_tokens": int(one_token)}
                )
                if status >= 400:
                    return web.Response(status=status, text="a worker failed")
                if header == PREFILLER:
                    fields["kv_transfer_params"] = told["kv_transfer_params"]
        body = json.dumps(fields).encode()
        self.local.append(Asked(self.address, asked.method, asked.path, asked.headers, body))
        answer = self.answer(self.local[-1])
        return web.Response(
            status=answer.status, body=b"".join(answer.pieces), content_type=answer.content_type
        )


async def _ask(url: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    try:
        async with aiohttp.ClientSession() as http, http.post(url, json=fields) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.status == 200 else {}
    except (aiohttp.ClientError, OSError):
        return 502, {}


class PartedServing(EngineServing):
    """Engines with roles, behind the real picker and a real Envoy."""

    asked = 0

    def specs(self) -> list[EndpointSpec]:
        """The pool, each endpoint with its engine's role."""
        return [
            EndpointSpec(
                address=each.address, models=each.models, role=each.role, ranks=each.ranks, labels=each.labels
            )
            for each in self.engines
            if isinstance(each, Worker)
        ]

    async def turns(self, text: str, number: int = 8, **options: Any) -> set[int]:
        """The statuses of so many conversations' turns, each decided before any is prefilled."""
        self.asked += 1
        decoders = [each for each in self.engines if isinstance(each, Decoder)]
        for each in decoders:
            each.open.clear()
        before = sum(len(each.asked) for each in decoders)
        calls = [
            asyncio.ensure_future(self.chat(f"{self.asked} {turn} {text}", **options))
            for turn in range(number)
        ]
        await until(
            lambda: (
                all(call.done() for call in calls)
                or sum(len(each.asked) for each in decoders) >= before + number
            )
        )
        for each in decoders:
            each.open.set()
        return {status for status, _ in await asyncio.gather(*calls)}
