"""The doctor's HTTP: one request, its answer or the reason why there is none.

Never raises for what the network does.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp.decide.record_files import DAMAGED

if TYPE_CHECKING:
    from epp.server.poll import Target

TIMEOUT_S = 10.0
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP status, 0 when there was no answer.
        body: the body, the reason when there was no answer.
        skew_s: the server's clock less ours, by its ``Date`` header; None without one.
        skew_error_s: how far that may be off: half of the round trip, and the header's whole second.
    """

    status: int
    body: bytes
    skew_s: float | None = None
    skew_error_s: float = 0.0

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body decoded, None when it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except DAMAGED:
            return None


async def fetch(
    http: aiohttp.ClientSession, url: str, *, target: Target | None = None, body: object = None
) -> Answer:
    """GET, or POST of a JSON body; with the endpoint's credentials where a target is given."""
    headers = {}
    tls: ssl.SSLContext | bool = True
    try:
        if target is not None:
            if url.startswith("https"):
                tls = ssl.create_default_context(cafile=target.ca_file or None)
            if target.bearer_token_file:
                with open(target.bearer_token_file) as file:  # noqa: ASYNC230, PTH123 - a command of its own
                    headers["authorization"] = f"Bearer {file.read().strip()}"
        started_s = time.time()
        async with http.request(
            "GET" if body is None else "POST",
            url,
            json=body,
            headers=headers,
            ssl=tls,
            server_hostname=target.server_name if target is not None and url.startswith("https") else None,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            answered_s = time.time()
            content = await response.content.read(MAX_BYTES)
            while not response.content.at_eof() and len(content) < MAX_BYTES:
                content += await response.content.read(MAX_BYTES - len(content))
            skew_s, error_s = _skew(response.headers.get("date"), started_s, answered_s)
            return Answer(response.status, content, skew_s, error_s)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Answer(0, reason.encode())


def _skew(date: str | None, started_s: float, answered_s: float) -> tuple[float | None, float]:
    """The header has whole seconds, so it was written up to a second after what it says."""
    if date is None:
        return None, 0.0
    with suppress(ValueError, TypeError):
        said_s = parsedate_to_datetime(date).timestamp() + 0.5
        return said_s - (started_s + answered_s) / 2, (answered_s - started_s) / 2 + 0.5
    return None, 0.0
