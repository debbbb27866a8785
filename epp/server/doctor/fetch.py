"""The doctor's HTTP: one request, its answer or the reason why there is none.

An endpoint is asked as the picker's probes ask it, through its region's relay where that is their way. Never
raises for what the network does.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp.decide.record_files import DAMAGED
from epp.extproc.headers import SERVED_KEY
from epp.extproc.mutate import DESTINATION_HEADER
from epp.server.client_credentials import client_tls
from epp.server.through_relay import check_served

if TYPE_CHECKING:
    import ssl

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


async def fetch(http: aiohttp.ClientSession, url: str) -> Answer:
    """GET of an address."""
    return await _answer(http, url, None, {}, tls=True, server_name=None)


async def ask_endpoint(
    http: aiohttp.ClientSession, target: Target, path: str, *, body: object = None
) -> Answer:
    """GET of an endpoint's page, or POST of a JSON body, with its credentials and on the probes' way.

    Args:
        http: the client.
        target: the endpoint; its base URL names it as its relay knows it.
        path: the page.
        body: what is posted, None for GET.
    """
    base_url, server_name = target.base_url, target.server_name
    headers: dict[str, str] = {}
    wanted = ""
    try:
        if target.bearer_token_file:
            with open(target.bearer_token_file) as file:  # noqa: ASYNC230, PTH123 - a command of its own
                headers["authorization"] = f"Bearer {file.read().strip()}"
        tls: ssl.SSLContext | bool = True
        if target.through is not None:
            wanted = base_url.partition("://")[2]
            headers[DESTINATION_HEADER] = wanted
            base_url, server_name = f"https://{target.through.address}", target.through.relay_name
            tls = target.through.tls()
        elif base_url.startswith("https"):
            tls = client_tls(target.ca_file)
    except (OSError, ValueError) as error:
        return _none(error)
    server_name = server_name if base_url.startswith("https") else None
    return await _answer(
        http, base_url + path, body, headers, tls=tls, server_name=server_name, wanted=wanted
    )


async def _answer(
    http: aiohttp.ClientSession,
    url: str,
    body: object,
    headers: dict[str, str],
    *,
    tls: ssl.SSLContext | bool,
    server_name: str | None,
    wanted: str = "",
) -> Answer:
    started_s = time.time()
    try:
        async with http.request(
            "GET" if body is None else "POST",
            url,
            json=body,
            headers=headers,
            ssl=tls,
            server_hostname=server_name,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            answered_s = time.time()
            if wanted:
                check_served(response.headers.get(SERVED_KEY, ""), wanted)
            content = await response.content.read(MAX_BYTES)
            while not response.content.at_eof() and len(content) < MAX_BYTES:
                content += await response.content.read(MAX_BYTES - len(content))
            skew_s, error_s = _skew(response.headers.get("date"), started_s, answered_s)
            return Answer(response.status, content, skew_s, error_s)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return _none(error)


def _none(error: Exception) -> Answer:
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
