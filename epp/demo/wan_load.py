"""The load of the demonstration with long links: long prompts to each region, in bursts and with pauses.

Owns the client and the schedule. Every request carries the same prompt, which the engine has in its cache,
so what differs between requests is the way there.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Self

import aiohttp

from epp.demo.wan_world import MODEL, REGION_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

BODY_BYTES = 72_000
"""About 18,000 tokens."""

_OUTPUT_TOKENS = 4
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests at once to one region after another, and the pause that follows.

    Attributes:
        requests: how many at once.
        pause_s: before the next burst.
    """

    requests: int
    pause_s: float


#: Not measured: a service that has run for a minute. Enough for every connection to have carried prompts.
WARM_UP = (Burst(8, 0.1), Burst(8, 0.1))
#: Six seconds end the connections that are closed at five, and slow others down where kernels do so.
SHORT = (Burst(4, 0.1), Burst(8, 6.0), Burst(1, 0.1), Burst(8, 0.1), Burst(4, 0.1))


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its user saw it.

    Attributes:
        region: the region asked for, ``""`` for any.
        served: the region that answered, ``""`` for none.
        status: HTTP status, 0 when the connection broke.
        at_s: monotonic time of the request.
        ttft_ms: to the first piece of the answer, or to the failure.
        complete: the answer came to its end.
    """

    region: str
    served: str
    status: int
    at_s: float
    ttft_ms: float
    complete: bool


class Client:
    """A user: an async context manager.

    Args:
        url: where requests go, ``http://host:port``.
    """

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        text = " ".join(f"w{number * 7919 % 9973}" for number in range(BODY_BYTES // 6 + 1000))
        self._body = json.dumps(
            {
                "model": MODEL,
                "stream": True,
                "max_tokens": _OUTPUT_TOKENS,
                "messages": [{"role": "user", "content": text[: BODY_BYTES - 120]}],
            }
        ).encode()
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Open no connection yet."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=600)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        await self._session.close()

    async def ask(self, region: str = "") -> Sample:
        """One request; a failure is a sample, too."""
        headers = {"content-type": "application/json"} | ({REGION_HEADER: region} if region else {})
        started_s, ttft_s, status, served, complete = time.monotonic(), 0.0, 0, "", False
        try:
            async with self._session.post(self._url, data=self._body, headers=headers) as answer:
                status, served = answer.status, answer.headers.get("x-served-by", "")
                await answer.content.readany()
                ttft_s = time.monotonic() - started_s
                await answer.read()
                complete = True
        except (aiohttp.ClientError, TimeoutError):
            pass
        ttft_s = ttft_s or time.monotonic() - started_s
        return Sample(region, served, status, started_s, ttft_s * 1e3, complete)

    async def warm_ms(self, count: int) -> float:
        """Median TTFT of requests one after another over one connection that has got going."""
        samples = [await self.ask() for _ in range(count)]
        return median(sample.ttft_ms for sample in samples[count // 2 :])

    async def bursts(self, regions: Sequence[str], schedule: Sequence[Burst]) -> list[Sample]:
        """The whole schedule; regions take turns, so that they do not compete for this machine."""
        samples: list[Sample] = []
        for burst in schedule:
            for region in regions:
                samples += await asyncio.gather(*(self.ask(region) for _ in range(burst.requests)))
            await asyncio.sleep(burst.pause_s)
        return samples

    async def steady(self, seconds: float, interval_s: float) -> list[Sample]:
        """A request every so often to whichever region the picker takes, whatever became of the last."""
        async with asyncio.TaskGroup() as group:
            asked = []
            for _ in range(round(seconds / interval_s)):
                asked.append(group.create_task(self.ask()))
                await asyncio.sleep(interval_s)
        return [task.result() for task in asked]
