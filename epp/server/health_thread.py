"""The thread that answers probes, whatever the picker's event loop does.

Owns the listeners `listen.http` and `listen.health`, on an event loop of its own, and the verdict on the
picker's loop: how long it has stood still, when readiness fails, when the process has to end. Probes are
answered at once. /metrics, the table behind a decision, what would be decided, and what evaluators say of an
answer concern the picker's state, and run on the picker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from epp.config.address import is_ip
from epp.config.federation import PEER_HEADER
from epp.errors import EppError
from epp.extproc.types import HttpRequest
from epp.metrics.metrics import CONTENT_TYPE
from epp.records.verdicts import MAX_VERDICT_BYTES, parse_verdict
from epp.rpc.accepting import located, watching
from epp.rpc.server import RpcServer
from epp.server.health import HealthState, health_service

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable

    from aiohttp.typedefs import Handler, Middleware

    from epp.config.listen import Listen
    from epp.metrics.metrics import Metrics
    from epp.records.verdicts import AnswerVerdict
    from epp.rpc.accepting import Acceptor, Watched
    from epp.server.tls import Certificates

    _Handler = Callable[[web.Request], Coroutine[Any, Any, web.Response]]

#: Time between heartbeats of the picker's loop, and between looks at them; less where the limit is short.
_TICK_S = 0.5
#: How long a route waits for the picker's loop: as long as Prometheus waits for a page.
_ANSWER_S = 10.0
#: How long a stop waits for requests that have no answer yet, e.g. because their bodies do not come.
_UNANSWERED_S = 5.0
#: Longest message of `listen.health`: its questions are names.
_MESSAGE_BYTES = 4096

#: How requests begin for which places are kept on `listen.http`.
_PROBES = (b"GET /livez", b"GET /readyz")

#: Paths that are answered whatever name they are asked by: scrapers and kubelets know a pod by any.
_ANY_HOST = ("/metrics", "/livez", "/readyz")
#: Of a body of which is asked what would be decided: as many as a request may have by default.
_MOST_BYTES = 32 * 1024 * 1024
_PORT = re.compile(r":\d*$")

T = TypeVar("T")


class StallClock:
    """Measures how long an event loop has stood still, from looks of a thread beside it.

    Time in which the whole process was stopped (SIGSTOP, a paused machine) does not count. Of the time
    between two looks counts one tick, or the CPU time that the process used meanwhile if that is more: C code
    that holds the interpreter's lock keeps the looking thread from running.

    Args:
        tick_s: planned time between two looks.
        now_s: monotonic time of the first look.
        cpu_s: CPU time of the process at that look.

    Attributes:
        stalled_s: how long the loop has stood still, as of the last look.
    """

    def __init__(self, tick_s: float, now_s: float, cpu_s: float) -> None:
        self._tick_s, self._now_s, self._cpu_s = tick_s, now_s, cpu_s
        self.stalled_s = 0.0

    def beat(self) -> None:
        """Take a heartbeat of the loop."""
        self.stalled_s = 0.0

    def look(self, now_s: float, cpu_s: float) -> None:
        """Count the time since the last look."""
        self.stalled_s += min(now_s - self._now_s, max(self._tick_s, cpu_s - self._cpu_s))
        self._now_s, self._cpu_s = now_s, cpu_s


class HealthThread:
    """The listeners for probes and metrics, and their thread.

    Args:
        listen: addresses, TLS and the stall limit.
        tls: makes what `listen.http` presents.
        source: name of the configuration file, for errors.
        metrics: counted into.
        max_connections: to each listener at once; those beyond are closed as they come.
        also: a second address of `listen.http`, without TLS; none when empty.
    """

    def __init__(
        self,
        listen: Listen,
        tls: Certificates,
        source: str,
        *,
        metrics: Metrics,
        max_connections: int,
        also: str = "",
    ) -> None:
        self._also = also
        self._listen, self._tls, self._source = listen, tls, source
        self._metrics, self._max_connections = metrics, max_connections
        self._tick_s = min(_TICK_S, listen.stall_limit_s / 4)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._state = HealthState()
        self._not_ready = self._published = "starting"
        self._beaten = False
        self._clock: StallClock | None = None
        self._acceptors: list[Acceptor[Watched]] = []

    async def start(
        self, routes: web.Application, on_stall: Callable[[float, str], None] | None
    ) -> tuple[str, str]:
        """Start the thread and open the listeners.

        Args:
            routes: of `listen.http`.
            on_stall: called from the thread once the picker's loop has stood still for
                `listen.stall_limit_s`, with the seconds and the stack of the loop's thread.

        Returns:
            The addresses of `listen.http` and `listen.health`, ``""`` for one that is not configured.

        Raises:
            ConfigError: an address cannot be bound, or a certificate not be used.
        """
        listen, source = self._listen, self._source
        tls = self._tls.context(listen.http_tls, "listen.http_tls")
        self._on_stall = on_stall
        self._picker_loop, self._picker_thread = asyncio.get_running_loop(), threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="health", daemon=True)
        self._thread.start()
        # A small body may be a large one, compressed: all that are taken are short.
        self._runner = web.AppRunner(
            routes, access_log=None, shutdown_timeout=_UNANSWERED_S, auto_decompress=False
        )
        self._health = RpcServer(
            health_service(self._state, any_name=True),
            max_receive_bytes=_MESSAGE_BYTES,
            max_send_bytes=_MESSAGE_BYTES,
            max_connections=self._max_connections,
            on_closed=lambda reason: self._closed("grpc", reason),
            keeps_places=True,
        )
        with located(source, "listen.http", listen.http):
            http = await self._in_thread(self._start_http(tls))
        if not listen.health:
            return http, ""
        with located(source, "listen.health", listen.health):
            return http, await self._in_thread(self._health.start(listen.health))

    async def _start_http(self, tls: ssl.SSLContext | None) -> str:
        await self._runner.setup()
        if self._also:
            self._listen_http(self._also, None)
        return self._listen_http(self._listen.http, tls)

    def _listen_http(self, address: str, tls: ssl.SSLContext | None) -> str:
        acceptor = watching(
            cast("web.Server", self._runner.server),
            most=self._max_connections,
            tls=tls,
            on_refused=lambda: self._closed("http", "limit"),
            end_idle=self._end_idle,
            probes=_PROBES,
        )
        self._acceptors.append(acceptor)
        return acceptor.listen(address)

    def _end_idle(self, connections: Iterable[Watched]) -> Watched | None:
        """End the first that came of those without a request under way; see `Acceptor`."""
        for connection in connections:
            # aiohttp tells nowhere else whether a request is read, handled or answered.
            if not cast("Any", connection.spoken)._request_in_progress:  # noqa: SLF001
                if connection.has_begun:
                    connection.abort()
                    self._closed("http", "room")
                return connection
        return None

    def _closed(self, listener: str, reason: str) -> None:
        self._metrics.value("epp_connections_closed_total", listener, reason).inc()

    async def heartbeats(self, publish: Callable[[], None]) -> None:
        """Call ``publish``, which has to call `HealthThread.publish`, at every tick for ever."""
        time_s = asyncio.get_running_loop().time
        stalled = self._metrics.value("epp_event_loop_stall_seconds_total")
        while True:
            due_s = time_s() + self._tick_s
            await asyncio.sleep(self._tick_s)
            stalled.inc(max(time_s() - due_s, 0.0))
            publish()

    def publish(self, not_ready: str) -> None:
        """Take a heartbeat, and the reason why requests should not come here, ``""`` when they should.

        The first one begins the watch over the loop. The thread is woken by what is new: another reason, or
        the end of a stall.
        """
        self._beaten = True
        stalled = self._clock is not None and self._clock.stalled_s > self._tick_s
        if self._loop is not None and (stalled or not_ready != self._published):
            self._published = not_ready
            self._loop.call_soon_threadsafe(self._heard, not_ready)

    async def stop(self) -> None:
        """End the watch, close the listeners and end the thread."""
        if self._loop is None:
            return
        await self._in_thread(self._close())
        loop, self._loop = self._loop, None
        loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def not_ready(self) -> str:
        """Why requests should not come here, ``""`` when they should. In the thread."""
        return self._stalled(self._listen.stall_limit_s / 2) or self._not_ready

    def not_live(self) -> str:
        """Why the process should end, ``""`` when it should not. In the thread."""
        return self._stalled(self._listen.stall_limit_s)

    def on_picker_loop(self, handler: _Handler, most_bytes: int = 0) -> _Handler:
        """A route's handler that runs on the picker's loop: 503 when the loop does not answer in time.

        Args:
            handler: of the route.
            most_bytes: that a body may have, 0 for as many as of any route.
        """

        async def answer(request: web.Request) -> web.Response:
            if most_bytes:
                request = request.clone(client_max_size=most_bytes)
            await request.read()  # on the connection's loop; the request keeps the body
            running = asyncio.run_coroutine_threadsafe(handler(request), self._picker_loop)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(running), _ANSWER_S)
            except TimeoutError:
                return web.Response(text="the picker's event loop does not answer\n", status=503)

        return answer

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None  # noqa: S101  # it was started
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await self._runner.cleanup()  # once the open requests have their answers
        # Last, so that readiness is answered for as long as the picker drains.
        await self._health.stop(0)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._watch())

    async def _watch(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s):
                    await self._stopping.wait()
            if self._clock is None:
                continue
            self._take_beat(self._clock)
            self._clock.look(time.monotonic(), time.process_time())
            self._update()
            if self._on_stall is not None and self.not_live():
                stack = traceback.format_stack(sys._current_frames()[self._picker_thread])  # noqa: SLF001
                self._on_stall(self._clock.stalled_s, "".join(stack))

    def _heard(self, not_ready: str) -> None:
        if self._clock is None:
            self._clock = StallClock(self._tick_s, time.monotonic(), time.process_time())
        self._not_ready = not_ready
        self._update()

    def _update(self) -> None:
        self._state.update(serving=not self.not_ready(), live=not self.not_live())

    def _take_beat(self, clock: StallClock) -> None:
        beaten, self._beaten = self._beaten, False
        if beaten:
            clock.beat()

    def _stalled(self, limit_s: float) -> str:
        if self._clock is not None:
            self._take_beat(self._clock)
        if self._clock is None or self._clock.stalled_s < limit_s:
            return ""
        return f"the event loop has stood still for {self._clock.stalled_s:.1f} s"


def build_app(
    *,
    health: HealthThread,
    names: Collection[str],
    metrics: Metrics,
    decision: Callable[[str], bytes],
    decided: Callable[[str], bool],
    preview: Callable[[HttpRequest], Awaitable[bytes]] | None = None,
    verdict: Callable[[AnswerVerdict, float], None] | None = None,
    elsewhere: Callable[[str], Awaitable[bytes]] | None = None,
) -> web.Application:
    """The routes.

    Args:
        health: the thread that serves the routes.
        names: hosts, in lower case, by which they may be asked for beside IP addresses and ``localhost``.
        metrics: what `/metrics` shows.
        decision: a recent decision with its outcome as JSON by id, empty where it is unknown; ``"last"`` for
            the newest.
        decided: whether a decision, however old, is this picker's, so that it takes a verdict on it.
        preview: what would be decided of a request now, as JSON; None where nobody may ask.
        verdict: takes what an evaluator says of an answer, and when; None where nothing is recorded.
        elsewhere: asks other pickers for a decision as JSON, empty where none has it; None without others.
    """

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.page(), headers={"content-type": CONTENT_TYPE})

    async def explain(request: web.Request) -> web.Response:
        asked = request.match_info["id"]
        content = decision(asked) or (b"" if elsewhere is None else await elsewhere(asked))
        if not content:
            return web.json_response({"error": "no such decision among the recent ones"}, status=404)
        return _decided(content, explained="explained" in request.query)

    async def feedback(request: web.Request) -> web.Response:
        if verdict is None:
            return web.json_response({"error": "the flight recorder is off (records.folder)"}, status=409)
        if (refused := _refused_sender(request)) is not None:
            return refused
        try:
            given = parse_verdict(request.match_info["id"], await request.read())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        if not decided(given.id):
            words = "unknown decision: this picker process has not made it; ask the one that did"
            return web.json_response({"error": words}, status=404)
        verdict(given, time.time())
        return web.json_response({"recorded": given.id}, status=202)

    app = web.Application(client_max_size=MAX_VERDICT_BYTES, middlewares=[_known_hosts(names)])
    routes, on_loop = app.router, health.on_picker_loop
    routes.add_get("/metrics", on_loop(page))
    routes.add_get("/livez", _probe(health.not_live))
    routes.add_get("/readyz", _probe(health.not_ready))
    routes.add_get("/decisions/{id}", on_loop(explain))
    routes.add_post("/decisions/{id}/feedback", on_loop(feedback))
    if preview is not None:
        routes.add_post("/preview/{path:.+}", on_loop(_previewing(preview), _MOST_BYTES))
    return app


def _previewing(preview: Callable[[HttpRequest], Awaitable[bytes]]) -> _Handler:
    """Make the handler that says what would be decided of a request now."""

    async def answer(request: web.Request) -> web.Response:
        if (refused := _refused_sender(request)) is not None:
            return refused
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers.pop(PEER_HEADER, None)  # its token serves once
        path = request.rel_url.raw_path_qs.removeprefix("/preview")
        try:
            content = await preview(HttpRequest("POST", path, headers, await request.read()))
        except EppError as error:
            return web.json_response({"error": f"it would be refused: {error}"}, status=409)
        return _decided(content, explained=False)

    return answer


def _known_hosts(names: Collection[str]) -> Middleware:
    """Answer to hosts of these names alone, beside IP addresses and ``localhost``."""

    @web.middleware
    async def known_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        # A name that an attacker's DNS points here would make a page of his of the same origin.
        host = _PORT.sub("", request.headers.get("host", "")).lower()
        if request.path in _ANY_HOST or host == "localhost" or is_ip(host.strip("[]")) or host in names:
            return await handler(request)
        words = f"the host {host!r} is not known here: ask by IP address, or name it in listen.http_names\n"
        return web.Response(text=words, status=421)

    return known_host


def _refused_sender(request: web.Request) -> web.Response | None:
    """Refuse feedback of another site's page, which a browser sends along with what it may reach."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        return web.json_response({"error": f"pages of {origin} may say nothing here"}, status=403)
    if request.content_type != "application/json":
        return web.json_response({"error": "content-type is not application/json"}, status=415)
    return None


def _decided(record: bytes, *, explained: bool) -> web.Response:
    if explained:
        from epp.console import explain  # noqa: PLC0415  # only once it is asked for

        found = msgspec.json.decode(record)
        record = msgspec.json.encode(explain.explained(found, found.get("outcome")))
    return web.Response(body=record, content_type="application/json")


def _probe(problem: Callable[[], str]) -> _Handler:
    async def answer(_: web.Request) -> web.Response:
        failure = problem()
        return web.Response(text=f"{failure or 'ok'}\n", status=503 if failure else 200)

    return answer
