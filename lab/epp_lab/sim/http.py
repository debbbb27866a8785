"""An HTTP server with every API of `epp.apis` that answers as its engine model says, a network delay away.

Every path is as far away as the replica, health and metrics included. A client that leaves cancels its job. A
restart is cold and has a new process start time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from epp.apis.registry import PARSERS, error_words, openai_error
from epp.errors import ClientError
from epp_lab.sim import api
from epp_lab.sim.answers import Answer, EngineDriver
from epp_lab.sim.engine import Engine
from epp_lab.sim.engine_class import L40S_X2, EngineClass
from epp_lab.sim.formats import FORMATS
from epp_lab.sim.job import EngineState, Job
from epp_lab.sim.metrics import Histogram, exposition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Self

    from epp.apis.types import Parser
    from epp_lab.sim.formats import Format
    from epp_lab.sim.lookup import Lookup

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BLOCK_TOKENS = 16
_MAX_BODY_BYTES = 64 * 1024 * 1024
#: Responses that one process stores.
_MOST_STORED = 1000
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]+')  # as labels of metrics and values of headers


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One simulated replica.

    Attributes:
        name: goes into ``x-served-by`` and request ids.
        host, port: where it listens; port 0 takes a free one, which a restart keeps.
        engine_class: the engine's constants.
        models: model names served; a request for another is a 404.
        rtt_ms: round trip to its region, half on each way.
        answer_tokens: length of an answer that no limit cuts.
        lookup: how it answers key-value lookups, as any other prompt when None.
    """

    name: str = "sim"
    host: str = "127.0.0.1"
    port: int = 0
    engine_class: EngineClass = L40S_X2
    models: tuple[str, ...] = ("sim-model",)
    rtt_ms: float = 0.0
    answer_tokens: int = 128
    lookup: Lookup | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a value makes no sense.
        """
        if not 0 <= self.port <= 65535:  # the system would take the rest of a division
            raise ValueError(f"{self.name}: port {self.port} is not a number from 0 to 65535")
        if not (self.rtt_ms >= 0 and isfinite(self.rtt_ms)):
            raise ValueError(f"{self.name}: rtt_ms must be a number of milliseconds, 0 or more")
        if not all(map(_PLAIN.fullmatch, (self.name, *self.models))):
            raise ValueError(f"{self.name}: name and models must be words without quotes or backslashes")


class SimReplica:
    """A running replica; an async context manager that starts and stops it.

    Attributes:
        config: what it is.
        requests: completions received since the object was made, over all restarts.
        refusal: status and ``Retry-After`` of every completion from now on; None to answer them.
        failing: whether every completion fails inside a 200, at once.
    """

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.requests = 0
        self.refusal: tuple[int, int] | None = None
        self.failing = False
        self._port = config.port
        self._runner: web.AppRunner | None = None
        self._half_rtt_s = config.rtt_ms / 2000.0
        self._driver: EngineDriver

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def address(self) -> str:
        """``host:port``, IPv6 hosts in brackets; known once started."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{host}:{self._port}"

    @property
    def url(self) -> str:
        """Base URL without a path."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Listen, with a cold engine; a replica that listens goes on.

        Raises:
            OSError: the port is taken.
        """
        if self._runner is not None:
            return
        loop = asyncio.get_running_loop()
        self._driver = EngineDriver(Engine(self.config.engine_class, BLOCK_TOKENS), loop)
        self._start_time_s = time.time()
        self._ttft, self._e2e, self._finished = Histogram(), Histogram(), Counter[str]()
        self._stored = deque[str](maxlen=_MOST_STORED)
        runner = web.AppRunner(
            self._app(),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # engines read a body as it came
            shutdown_timeout=0.0,
            keepalive_timeout=3600.0,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self.config.host, self._port, backlog=4096, reuse_address=True).start()
        except OSError:
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def kill(self) -> None:
        """Die as a process does: the listener closes and every connection is reset."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._driver.close()
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections if runner.server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    def snapshot(self) -> EngineState:
        """Return the engine's gauges and counters now."""
        self._driver.catch_up()
        return self._driver.engine.snapshot()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._distance])
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.post("/fault", self._fault),
            ]
        )
        for parser in PARSERS:
            for method, path in product(parser.methods, parser.paths):
                app.router.add_route(method, path, partial(self._answer, parser))
        return app

    @web.middleware
    async def _distance(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Delay every request on its way there and back, and word errors as its API does."""
        words = error_words(request.path) or openai_error
        try:
            await request.read()
            await asyncio.sleep(self._half_rtt_s)
            response = await handler(request)
        except ClientError as error:
            response = _json(error.status, words(error.status, error.message, error.param))
        except web.HTTPException as error:
            response = _json(error.status, words(error.status, error.reason, None))
        response.headers.setdefault("x-served-by", self.config.name)
        if not response.prepared:
            await asyncio.sleep(self._half_rtt_s)
        return response

    async def _answer(self, parser: Parser, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        number, config = self.requests, self.config
        if self.refusal is not None:
            status, retry_after_s = self.refusal
            body = parser.error_body(status, "The replica was told to refuse.", None)
            return _json(status, body, {"retry-after": str(retry_after_s)})
        if self.failing:
            streamed = await self._open(request)
            error = parser.error_body(500, "The engine is broken.", None)
            await streamed.write(b"data: " + error + b"\n\n")
            return streamed
        asked = api.parse(parser, await request.read())
        model = asked.parsed.model or config.models[0]
        if model not in config.models:
            raise ClientError(404, f"The model `{model}` does not exist.", "model")
        previous = asked.parsed.previous_response
        if previous and previous not in self._stored:
            raise ClientError(404, f"Response with id '{previous}' not found.", "previous_response_id")
        if parser.name not in FORMATS:
            return _json(200, msgspec.json.encode({"input_tokens": asked.prompt_tokens}))
        known = config.lookup.words(asked) if config.lookup is not None else []
        cls = config.engine_class
        answer_tokens, finish_reason = asked.answer_tokens(
            len(known) or config.answer_tokens, min(cls.context_tokens, cls.kv_capacity_tokens)
        )
        words = known[:answer_tokens] or api.answer_words(asked, answer_tokens)
        path = api.chain_blocks(asked, words, BLOCK_TOKENS)
        full = asked.prompt_tokens // BLOCK_TOKENS
        job = Job(number, asked.prompt_tokens, len(words), path[:full], path[full:])
        form = FORMATS[parser.name](asked, model, f"{config.name}-{number}", words, finish_reason)
        if asked.parsed.stores:
            self._stored.append(form.id)
        return await self._serve(request, job, form)

    async def _serve(self, request: web.Request, job: Job, form: Format) -> web.StreamResponse:
        """Let the engine do a job, and send what comes of it."""
        clock = asyncio.get_running_loop().time
        arrived_s = clock()
        answer = Answer(
            form, delay_s=self._half_rtt_s, on_first=lambda: self._ttft.observe(clock() - arrived_s)
        )
        driver, streamed = self._driver, None
        driver.submit(job, answer)
        try:
            with suppress(ConnectionResetError):  # the client has left, and this is not cancelled yet
                if answer.streamed:
                    streamed = await self._open(request)
                async for piece in answer.pieces():
                    if streamed is not None:
                        await streamed.write(piece)
        finally:  # when the client leaves, this is cancelled and so is the job
            driver.cancel(job.job_id)
        self._e2e.observe(clock() - arrived_s)
        self._finished[form.finish_reason] += 1
        return _json(200, answer.body()) if streamed is None else streamed

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Send the headers, half a round trip after the request was read, as engines do."""
        headers = {"content-type": "text/event-stream; charset=utf-8", "x-served-by": self.config.name}
        response = web.StreamResponse(headers=headers)
        await asyncio.sleep(self._half_rtt_s)
        await response.prepare(request)
        return response

    async def _models(self, _: web.Request) -> web.StreamResponse:
        created_s, context = int(self._start_time_s), self.config.engine_class.context_tokens
        card = {"object": "model", "created": created_s, "owned_by": "sim", "max_model_len": context}
        models = [{"id": model, **card} for model in self.config.models]
        return _json(200, msgspec.json.encode({"object": "list", "data": models}))

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _fault(self, request: web.Request) -> web.StreamResponse:
        """Let work take ``?slowdown=`` times as long (0: it dies), or answers fail with ``?failing=1``."""
        self.failing = request.query.get("failing") == "1"
        if factor := float(request.query.get("slowdown", 1.0)):
            self._driver.slow_down(factor)
        else:
            self._death = asyncio.ensure_future(self.kill())
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        text = exposition(
            self.snapshot(),
            self.config.models[0],
            block_tokens=BLOCK_TOKENS,
            start_time_s=self._start_time_s,
            histograms={"time_to_first_token_seconds": self._ttft, "e2e_request_latency_seconds": self._e2e},
            finished=self._finished,
        )
        return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
