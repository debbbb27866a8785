"""The HTTP face: /metrics, probes, the table behind a decision, and what evaluators say of its answer.

Listens where configured, on loopback by default, in the thread of `epp.server.health_thread`. Probes are
answered there at once; the other routes read the picker's state, on its event loop. As many connections as
the gRPC listener may have, and none that is silent for long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from epp.records.verdicts import MAX_VERDICT_BYTES, parse_verdict
from epp.schedule.decision import to_record
from epp.server.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.records.verdicts import Verdict
    from epp.schedule.decision import Decision
    from epp.server.health_thread import HealthThread
    from epp.server.metrics import Metrics


def build_app(
    *,
    health: HealthThread,
    metrics: Metrics,
    decision: Callable[[str], Decision | None],
    decided: Callable[[str], bool],
    verdict: Callable[[Verdict, float], None] | None = None,
) -> web.Application:
    """The routes.

    Args:
        health: the thread that serves the routes.
        metrics: what `/metrics` shows.
        decision: a recent decision by id; ``"last"`` for the newest.
        decided: whether a decision, however old, is this picker's, so that it takes a verdict on it.
        verdict: takes what an evaluator says of an answer, and when; None where nothing is recorded.
    """

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.page(), headers={"content-type": CONTENT_TYPE})

    async def livez(_: web.Request) -> web.Response:
        return _probed(health.not_live())

    async def readyz(_: web.Request) -> web.Response:
        return _probed(health.not_ready())

    async def explain(request: web.Request) -> web.Response:
        found = decision(request.match_info["id"])
        if found is None:
            return web.json_response({"error": "no such decision among the recent ones"}, status=404)
        return web.Response(body=msgspec.json.encode(to_record(found)), content_type="application/json")

    async def feedback(request: web.Request) -> web.Response:
        if verdict is None:
            return web.json_response({"error": "the flight recorder is off (records.folder)"}, status=409)
        try:
            given = parse_verdict(request.match_info["id"], await request.read())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        if not decided(given.id):
            words = "unknown decision: this picker process has not made it; ask the one that did"
            return web.json_response({"error": words}, status=404)
        verdict(given, time.time())
        return web.json_response({"recorded": given.id}, status=202)

    app = web.Application(client_max_size=MAX_VERDICT_BYTES)
    app.add_routes(
        [
            web.get("/metrics", health.on_picker_loop(page)),
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/decisions/{id}", health.on_picker_loop(explain)),
            web.post("/decisions/{id}/feedback", health.on_picker_loop(feedback)),
        ]
    )
    return app


def _probed(failure: str) -> web.Response:
    return web.Response(text=f"{failure or 'ok'}\n", status=503 if failure else 200)
