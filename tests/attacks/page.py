"""What a hostile web page, or who reaches `listen.http`, asks of a picker's page and feedback."""

from __future__ import annotations

import asyncio
import gzip
import time

import aiohttp

from epp_lab.bench.processes import held, picker, pool_of

_JSON = {"content-type": "application/json"}
_BOMB = gzip.compress(bytes(200_000_000))
#: Method, path, headers and body of what has to be refused.
REFUSED: tuple[tuple[str, str, dict[str, str], bytes | None], ...] = (
    ("GET", "/ui", {"host": "rebound.example:9090"}, None),
    ("GET", "/decisions/last", {"host": "127.0.0.1.rebound.example"}, None),
    ("POST", "/decisions/a/feedback", _JSON | {"origin": "http://evil.example"}, b'{"correct": true}'),
    ("POST", "/decisions/a/feedback", _JSON | {"origin": "null"}, b'{"correct": true}'),
    ("POST", "/decisions/a/feedback", {"content-type": "text/plain"}, b'{"correct": true}'),
    ("POST", "/decisions/a/feedback", _JSON | {"content-encoding": "gzip"}, _BOMB),
)
#: Opinions asked for at once, of each of these.
_OPINIONS, _POLICIES = 20, ("gorgo", "lmetric", "round-robin", "least-request", "random")


async def _asked() -> tuple[list[int], float, int]:
    """Send it all, then opinions; statuses, the slowest probe beside the opinions in ms, and growth in bytes."""
    async with picker(pool_of(3)) as server, aiohttp.ClientSession(f"http://{server.http}") as http:
        before_bytes = held(server.pid).rss_bytes
        statuses = []
        for method, path, headers, body in REFUSED:
            async with http.request(method, path, headers=headers, data=body) as answer:
                statuses.append(answer.status)
        grown_bytes = held(server.pid).rss_bytes - before_bytes

        async def opinion(policy: str) -> None:
            async with http.get("/ui/opinion", params={"policy": policy}) as answer:
                answer.raise_for_status()

        asked = asyncio.gather(*(opinion(policy) for policy in _POLICIES for _ in range(_OPINIONS)))
        slowest_ms = 0.0
        while not asked.done():
            began_s = time.monotonic()
            async with http.get("/livez") as answer:
                answer.raise_for_status()
            slowest_ms = max(slowest_ms, (time.monotonic() - began_s) * 1e3)
            await asyncio.sleep(0.02)
        await asked
        return statuses, slowest_ms, grown_bytes


def asked() -> tuple[list[int], float, int]:
    """Return statuses of what has to be refused, the slowest probe in ms, and growth in bytes."""
    return asyncio.run(_asked())
