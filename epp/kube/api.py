"""Calls of the Kubernetes API, get, watch and write, over the client library: bytes out, `KubeError` else.

Owns the connection. A client whose credentials or TLS are refused is dropped; the next call builds one from
fresh files. Answers stay text: `epp.kube.objects` reads them, since the library's models know no custom
resources and cost far more to build.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from epp import __version__
from epp.kube.credentials import load
from epp.kube.objects import Status
from epp.kube.problems import KubeError, Reason, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from epp.config.kubernetes import Kubernetes
    from epp.kube.credentials import Surroundings

log = logging.getLogger(__name__)

CONNECT_S = 10.0
LIST_S = 60.0
#: Silence after which a watch ends and is resumed: bookmarks come about once a minute.
SILENCE_S = 150.0
_JSON = "application/json"
#: Names and labels without the rest: nodes are large, and their images and heartbeats are not wanted.
_METADATA = {
    False: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    True: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
}

_status = msgspec.json.Decoder(Status).decode


class KubeApi:
    """An API server.

    Args:
        settings: which credentials.
        around: where they are looked for.
    """

    def __init__(self, settings: Kubernetes, around: Surroundings) -> None:
        self._settings, self._around = settings, around
        self._client: Any = None
        self._opening = asyncio.Lock()

    async def get(self, path: str, params: Mapping[str, str], *, metadata_only: bool = False) -> bytes:
        """The answer to a GET.

        Raises:
            KubeError: anything but success.
        """
        timeout = aiohttp.ClientTimeout(total=LIST_S, sock_connect=CONNECT_S)
        accept = _METADATA[False] if metadata_only else _JSON
        async with self._answer(path, params, timeout, accept) as response:
            return await response.read()

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Write an object.

        Raises:
            KubeError: anything but success.
        """
        timeout = aiohttp.ClientTimeout(total=LIST_S, sock_connect=CONNECT_S)
        async with self._answer(path, {}, timeout, _JSON, method=method, body=body):
            pass

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], *, metadata_only: bool = False
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch, until the server ends it or is silent; no line that was cut off is given out.

        Raises:
            KubeError: anything but success, also in the middle.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        params = {**params, "watch": "true"}
        accept = _METADATA[True] if metadata_only else _JSON
        async with self._answer(path, params, timeout, accept) as response:
            yield _lines(response)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _answer(
        self,
        path: str,
        params: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        accept: str,
        *,
        method: str = "GET",
        body: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        client = await self._open()
        response: aiohttp.ClientResponse | None = None
        try:
            response = await client.call_api(
                path,
                method,
                query_params=list(params.items()),
                header_params={"Accept": accept, **({} if body is None else {"Content-Type": _JSON})},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=limits,
            )
            if response.status not in (200, 201):
                raise await _refused(response)
            yield response
        except (ssl.SSLError, aiohttp.ClientSSLError) as error:
            await self._distrust(client)
            raise KubeError(Reason.UNREACHABLE, f"TLS with the API server fails: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = str(error) or type(error).__name__
            raise KubeError(Reason.UNREACHABLE, f"the API server does not answer: {words}") from error
        except RuntimeError as error:
            if client is self._client:
                raise
            # What aiohttp says where `_distrust` closed the client while this call waited for a token.
            words = "the credentials that the call began with were refused meanwhile"
            raise KubeError(Reason.UNREACHABLE, words) from error
        except KubeError as error:
            if error.reason is Reason.UNAUTHORIZED:
                await self._distrust(client)
            raise
        finally:
            if response is not None:
                response.close()

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                configuration = await load(self._settings, self._around)
                self._client = _new_client(configuration)
            return self._client

    async def _distrust(self, client: Any) -> None:
        if self._client is client:
            self._client = None
            # This cuts the client's other watches: they resume with the new credentials.
            with contextlib.suppress(Exception):
                await client.close()


def _new_client(configuration: Any) -> Any:
    from kubernetes_asyncio.client.api_client import ApiClient  # noqa: PLC0415  # see epp.kube.credentials

    try:
        client = ApiClient(configuration)
    except (OSError, ValueError) as error:  # certificates that cannot be read
        raise KubeError(Reason.CREDENTIALS, f"cannot use the certificates: {error}") from error
    client.user_agent = f"gorgo-epp/{__version__}"
    return client


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while line := await _line(response):
        if not line.endswith(b"\n"):
            raise KubeError(Reason.UNREACHABLE, "the watch was cut in the middle of an event")
        if line.strip():
            yield line


async def _line(response: aiohttp.ClientResponse) -> bytes:
    """The next line of a watch, empty at its end."""
    try:
        return await response.content.readline()
    except TimeoutError:
        # API servers send no bookmarks before the first event, so silence is no failure. Where it is a dead
        # connection, the next watch fails.
        return b""
    except ValueError as error:  # longer than the library's buffer, which is larger than what etcd stores
        raise KubeError(Reason.MALFORMED, "an event of the watch is too long") from error


async def _refused(response: aiohttp.ClientResponse) -> KubeError:
    body = await response.read()
    try:
        message = _status(body).message
    except ValueError:
        message = body[:200].decode(errors="replace")
    wait = response.headers.get("Retry-After", "")
    return KubeError(
        reason_of(response.status),
        message or f"HTTP {response.status}",
        float(wait) if wait.isdecimal() else 0.0,
    )
