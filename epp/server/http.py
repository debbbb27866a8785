"""The HTTP face: /metrics, probes, the table behind a decision, and what evaluators say of its answer.

Listens where configured, on loopback by default.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from epp.decide.records import to_record
from epp.decide.verdicts import MAX_VERDICT_BYTES, parse_verdict
from epp.server.metrics_page import CONTENT_TYPE, page

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from epp.decide.records import Decision
    from epp.decide.verdicts import Verdict


def build_app(
    *,
    registry: CollectorRegistry,
    not_ready: Callable[[], str],
    decision: Callable[[str], Decision | None],
    verdict: Callable[[Verdict, float], None] | None = None,
) -> web.Application:
    """The routes.

    Args:
        registry: metrics to expose.
        not_ready: reason why requests should not come here, ``""`` when they should.
        decision: a recent decision by id; ``"last"`` for the newest.
        verdict: takes what an evaluator says of an answer, and when; None where nothing is recorded.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=await page(registry), headers={"content-type": CONTENT_TYPE})

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def explain(request: web.Request) -> web.Response:
        found = decision(request.match_info["id"])
        if found is None:
            return web.json_response({"error": "no such decision among the recent ones"}, status=404)
        return web.Response(body=msgspec.json.encode(to_record(found)), content_type="application/json")

    async def feedback(request: web.Request) -> web.Response:
        if verdict is None:
            return web.json_response({"error": "the flight recorder is off (records.folder)"}, status=409)
        try:
            told = parse_verdict(request.match_info["id"], await request.read())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        verdict(told, time.time())
        return web.json_response({"recorded": told.id}, status=202)

    app = web.Application(client_max_size=MAX_VERDICT_BYTES)
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/decisions/{id}", explain),
            web.post("/decisions/{id}/feedback", feedback),
        ]
    )
    return app
