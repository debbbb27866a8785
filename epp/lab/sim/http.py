"""An OpenAI-compatible HTTP server that answers as its engine model says, a network delay away.

Owns the listener, the connections and the faults of one simulated replica. Rules: every endpoint pays the
delay, health and metrics included, and the administration under ``/sim/`` does not; a client that leaves
cancels its job; a restart is cold and has a new process start time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import HttpVersion11, web

from epp import __version__
from epp.errors import ClientError
from epp.keyed_uniform import keyed_uniform
from epp.lab.sim import api, metrics, sse
from epp.lab.sim.answer import Answer, StreamedAnswer
from epp.lab.sim.driver import DelayLine, EngineDriver
from epp.lab.sim.engine import Engine
from epp.lab.sim.engine_class import L40S_X2, EngineClass
from epp.lab.sim.fault import Fault
from epp.lab.sim.job import EngineState, Job
from epp.lab.sim.network import SendWindow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Self

    from epp.lab.sim.lookup import Lookup

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_BODY_BYTES = 64 * 1024 * 1024
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]+')  # as labels of metrics and values of headers


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One simulated replica.

    Attributes:
        name: goes into ``x-served-by`` and request ids.
        host, port: where it listens; port 0 picks a free one, which a restart keeps.
        engine_class: the engine's constants.
        models: model names served; a request for another is a 404.
        rtt_ms: round trip to its region, half on each way.
        slow_start: whether large bodies on cold connections pay extra round trips (`SendWindow`).
        engine: metric names: ``vllm``, ``sglang`` or ``both``.
        report_cached_tokens: whether usage tells cached tokens, as engines do behind a flag.
        answer_tokens: length of an answer that no limit cuts.
        block_tokens: tokens per KV block.
        seed: of the fault draws.
        lookup: how it answers key-value lookups, as any other prompt when None.
    """

    name: str = "sim"
    host: str = "127.0.0.1"
    port: int = 0
    engine_class: EngineClass = L40S_X2
    models: tuple[str, ...] = ("sim-model",)
    rtt_ms: float = 0.0
    slow_start: bool = False
    engine: str = "both"
    report_cached_tokens: bool = True
    answer_tokens: int = 128
    block_tokens: int = 16
    seed: int = 0
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
        if self.engine not in metrics.ENGINES:
            raise ValueError(f"{self.name}: engine must be one of {', '.join(metrics.ENGINES)}")
        room = self.engine_class.kv_capacity_tokens
        if self.answer_tokens < 1 or not 1 <= self.block_tokens <= room:
            raise ValueError(f"{self.name}: answer_tokens must be at least 1, block_tokens 1 to {room}")
        if not self.models or not all(map(_PLAIN.fullmatch, (self.name, *self.models))):
            raise ValueError(f"{self.name}: name and models must be words without quotes or backslashes")


class SimReplica:
    """A running replica; an async context manager that starts and stops it."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.fault = Fault()
        self.requests = 0  # completions received since the object was made, over all restarts
        self._port = config.port
        self._runner: web.AppRunner | None = None
        self._revival: asyncio.Task[None] | None = None
        self._windows: WeakKeyDictionary[asyncio.BaseTransport, SendWindow] = WeakKeyDictionary()
        self._answering = asyncio.Event()  # cleared while told to hang
        self._stopping = asyncio.Event()
        self._half_rtt_s = config.rtt_ms / 2000.0
        self._driver: EngineDriver
        self._line: DelayLine
        self._model = config.models[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """``host:port``, IPv6 hosts in brackets; known once started."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{host}:{self._port}"

    @property
    def url(self) -> str:
        """Base URL without a path."""
        return f"http://{self.address}"

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return self._runner is not None

    async def start(self) -> None:
        """Listen, with a cold engine and no fault; nothing happens when it is alive.

        Raises:
            OSError: the port is taken.
        """
        if self._runner is not None:
            return
        loop = asyncio.get_running_loop()
        self.fault = Fault()
        self._answering.set()
        self._stopping.clear()
        self._driver = EngineDriver(Engine(self.config.engine_class, self.config.block_tokens), loop)
        self._line = DelayLine(loop, self._half_rtt_s)
        self._start_time_s = time.time()
        self._ttft, self._e2e, self._finished = metrics.Histogram(), metrics.Histogram(), Counter[str]()
        self._last_scrape = (loop.time(), 0)
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
        self._line.close()
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections if runner.server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def stop(self) -> None:
        """Stop for good."""
        self._stopping.set()
        if self._revival is not None:
            await self._revival
            self._revival = None
        await self.kill()

    async def restart(self) -> None:
        """Die and come back cold on the same port, with a new process start time."""
        await self.kill()
        await self.start()

    def set_fault(self, fault: Fault) -> None:
        """Have this fault from now on, and no other; ``Fault()`` heals.

        Raises:
            RuntimeError: it is dead; `start` heals that.
        """
        if self._runner is None:
            raise RuntimeError(f"{self.config.name} is dead")
        self.fault = fault
        self._driver.set_slowdown(fault.slow_factor)
        self._driver.hold(fault.hang)
        if fault.hang:
            self._answering.clear()
        else:
            self._answering.set()
        if self._revival is not None:
            self._revival.cancel()  # about to die, as the fault before said: this one replaces it
            self._revival = None
        if fault.die:
            self._revival = asyncio.get_running_loop().create_task(self._die(fault.revive_after_s))

    def snapshot(self) -> EngineState:
        """The engine's gauges and counters now."""
        self._driver.catch_up()
        return self._driver.engine.snapshot()

    async def _die(self, revive_after_s: float | None) -> None:
        await asyncio.sleep(0.01)  # so that who asked for it gets an answer
        await self.kill()
        if revive_after_s is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), revive_after_s)
            if not self._stopping.is_set():
                await self.start()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._distance])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/sim/fault", self._get_fault),
                web.post("/sim/fault", self._post_fault),
            ]
        )
        return app

    @web.middleware
    async def _distance(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What every request but the administration's goes through: delays, hanging, errors as OpenAI's."""
        if request.path.startswith("/sim/"):
            return await handler(request)
        try:
            body = await request.read()
            await self._sleep(self._half_rtt_s * (1 + 2 * self._extra_round_trips(request, len(body))))
            await self._answering.wait()
            response = await handler(request)
        except ClientError as error:
            response = _json(error.status, sse.error_body(error.status, error.message, error.param))
        except web.HTTPException as error:
            response = _json(error.status, sse.error_body(error.status, error.reason))
        response.headers.setdefault("x-served-by", self.config.name)
        if not response.prepared:
            await self._answering.wait()
            await self._sleep(self._half_rtt_s)
        return response

    def _extra_round_trips(self, request: web.Request, body_bytes: int) -> int:
        if not self.config.slow_start or request.transport is None:
            return 0
        return self._windows.setdefault(request.transport, SendWindow()).upload_round_trips(body_bytes)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=False)

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        self.requests += 1
        number, fault, config = self.requests, self.fault, self.config
        if (
            fault.error_rate
            and keyed_uniform(config.seed, f"{config.name}-{number}", "error") < fault.error_rate
        ):
            error = sse.error_body(fault.error_status, "The replica was told to fail.")
            return _json(fault.error_status, error, fault.error_headers)
        asked = api.parse(await request.read(), chat=chat)
        if asked.model not in config.models:
            message = f"The model `{asked.model}` does not exist."
            return _json(404, sse.error_body(404, message, "model", "model_not_found"))
        known = config.lookup.words(asked) if config.lookup is not None else []
        answer_tokens, finish_reason = asked.answer_tokens(
            len(known) or config.answer_tokens,
            min(config.engine_class.context_tokens, config.engine_class.kv_capacity_tokens),
        )
        words = known[:answer_tokens] or api.answer_words(asked, answer_tokens)
        path = api.chain_blocks(asked, words, config.block_tokens)
        full = asked.prompt_tokens // config.block_tokens
        job = Job(number, asked.prompt_tokens, len(words), path[:full], path[full:])
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{config.name}-{number}"
        frames = sse.Frames(request_id, int(time.time()), asked.model, chat=chat)
        arrived_s = asyncio.get_running_loop().time()
        common: dict[str, Any] = {
            "prompt_tokens": asked.prompt_tokens,
            "report_cached_tokens": config.report_cached_tokens,
            "on_first": lambda: self._ttft.observe(asyncio.get_running_loop().time() - arrived_s),
        }
        if not asked.stream:
            whole = Answer(frames, words, finish_reason, **common)
            await self._run(job, whole, arrived_s)
            return _json(200, whole.body())
        streamed = StreamedAnswer(
            frames,
            words,
            finish_reason,
            **common,
            include_usage=asked.include_usage,
            reset_after_tokens=fault.reset_after_tokens,
            line=self._line,
        )
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream; charset=utf-8", "x-served-by": config.name}
        )
        await self._run(job, streamed, arrived_s, lambda: self._open(request, response, streamed))
        return response

    async def _run(
        self, job: Job, answer: Answer, arrived_s: float, opening: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """See a job through; when the client leaves, this is cancelled and so is the job."""
        driver = self._driver
        driver.submit(job, answer)
        try:
            if opening is not None:
                await opening()
            await answer.ended
            self._e2e.observe(asyncio.get_running_loop().time() - arrived_s)
            self._finished[answer.finish_reason] += 1
        finally:
            driver.cancel(job.job_id)

    async def _open(self, request: web.Request, response: web.StreamResponse, answer: StreamedAnswer) -> None:
        """Send the headers, half a round trip after the request was read, as engines do."""
        await self._sleep(self._half_rtt_s)
        with contextlib.suppress(ConnectionResetError):  # the client is leaving: this task will be cancelled
            await response.prepare(request)
        if request.transport is not None:
            answer.open(request.transport, chunked=request.version >= HttpVersion11)

    async def _models(self, _: web.Request) -> web.StreamResponse:
        created_s, context = int(self._start_time_s), self.config.engine_class.context_tokens
        card = {"object": "model", "created": created_s, "owned_by": "sim", "max_model_len": context}
        models = [{"id": model, **card} for model in self.config.models]
        return _json(200, msgspec.json.encode({"object": "list", "data": models}))

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json(200, msgspec.json.encode({"version": __version__}))

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        snapshot = self.snapshot()
        now_s, generated = asyncio.get_running_loop().time(), snapshot.counters.generated_tokens
        last_s, last_generated = self._last_scrape
        self._last_scrape = (now_s, generated)
        reading = metrics.Reading(
            snapshot=snapshot,
            model=self._model,
            block_tokens=self.config.block_tokens,
            start_time_s=self._start_time_s,
            tokens_per_s=(generated - last_generated) / max(now_s - last_s, 1e-3),
            ttft=self._ttft,
            e2e=self._e2e,
            finished=self._finished,
        )
        text = metrics.exposition(reading, self.config.engine)
        return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _get_fault(self, _: web.Request) -> web.StreamResponse:
        return _json(200, msgspec.json.encode(self.fault))

    async def _post_fault(self, request: web.Request) -> web.StreamResponse:
        try:
            fault = msgspec.json.decode(await request.read(), type=Fault)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _json(400, sse.error_body(400, str(error)))
        self.set_fault(fault)
        return _json(200, msgspec.json.encode(fault))


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
