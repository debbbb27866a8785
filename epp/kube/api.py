"""Calls of the Kubernetes API, get, watch and write, over the client library: bytes out, `KubeError` else.

Owns the connection, and where credentials come from: the kubeconfig file that the configuration names, else
the pod's service account, else ``$KUBECONFIG`` or ``~/.kube/config``; the library's own loaders read them. A
client whose credentials or TLS are refused is dropped; the next call builds one from fresh files. Answers
stay text: `epp.kube.objects` reads them, since the library's models know no custom resources and cost far
more to build.

The library is imported here alone, and only when a cluster is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

from epp import __version__
from epp.kube.objects import Status
from epp.kube.problems import KubeError, Reason, reason_of
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from epp.config.kubernetes import Kubernetes


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Longest time that credentials may take: a plugin that hangs would hold every call for ever.
LOAD_S = 60.0
_AUTH = "BearerToken"


class Surroundings(NamedTuple):
    """Where the process runs, replaceable in tests.

    Attributes:
        environ: environment variables.
        service_account: folder of the pod's token, CA and namespace.
        home: folder that ``.kube/config`` is looked for in.
        base: folder that a relative `kubeconfig` is relative to.
    """

    environ: Mapping[str, str]
    service_account: Path = SERVICE_ACCOUNT
    home: Path = Path("~")
    base: Path = Path()

    @classmethod
    def here(cls, base: Path) -> Surroundings:
        """Those of this process."""
        return cls(environ=os.environ, home=Path.home(), base=base)


def namespace_of(settings: Kubernetes, around: Surroundings) -> str:
    """Namespace of everything that is watched."""
    if settings.namespace:
        return settings.namespace
    if around.environ.get("NAMESPACE"):
        return around.environ["NAMESPACE"]
    try:
        own = (around.service_account / "namespace").read_text().strip()
    except OSError:
        own = ""
    return own or "default"


async def load(settings: Kubernetes, around: Surroundings) -> Any:
    """The library's configuration.

    Raises:
        KubeError: there are no credentials, or they cannot be used.
    """
    try:
        # Beside the loop: the library reads files, and runs plugins, as if they always answered.
        async with asyncio.timeout(LOAD_S):
            return await in_daemon_thread(lambda: asyncio.run(_load(settings, around)))
    except KubeError:
        raise
    except Exception as error:  # files, plugins and token servers fail in any way they like
        words = f"no answer within {LOAD_S:g} s" if isinstance(error, TimeoutError) else str(error)
        problem = f"cannot use the credentials: {words or type(error).__name__}"
        raise KubeError(Reason.CREDENTIALS, problem) from error


async def _load(settings: Kubernetes, around: Surroundings) -> Any:
    from kubernetes_asyncio.client.configuration import Configuration  # noqa: PLC0415  # see the module
    from kubernetes_asyncio.config import load_incluster_config  # noqa: PLC0415
    from kubernetes_asyncio.config.kube_config import (  # noqa: PLC0415
        KubeConfigLoader,
        KubeConfigMerger,
    )

    configuration: Any = Configuration()
    if settings.kubeconfig or not around.environ.get("KUBERNETES_SERVICE_HOST"):
        merged: Any = KubeConfigMerger(_kubeconfig_files(settings, around)).config
        await KubeConfigLoader(merged, config_base_path=None).load_and_set(configuration)
    else:
        load_incluster_config(  # type: ignore[no-untyped-call]  # the library leaves it untyped
            client_configuration=configuration,
            token_filename=str(around.service_account / "token"),
            cert_filename=str(around.service_account / "ca.crt"),
            environ=around.environ,
        )
    if token := configuration.api_key.get(_AUTH):
        configuration.api_key[_AUTH] = token.strip()  # a header holds no line break of its file
    return configuration


def _kubeconfig_files(settings: Kubernetes, around: Surroundings) -> str:
    if settings.kubeconfig:
        path = around.base / settings.kubeconfig
        if not path.is_file():
            raise KubeError(
                Reason.CREDENTIALS, f"pool.kubernetes.kubeconfig: there is no file {settings.kubeconfig}"
            )
        return str(path)
    named = around.environ.get("KUBECONFIG", "") or str(around.home / ".kube" / "config")
    if not any(Path(part).expanduser().is_file() for part in named.split(os.pathsep) if part):
        raise KubeError(
            Reason.CREDENTIALS,
            f"no service account in this pod's environment and no kubeconfig at {named}: "
            "run in a cluster, or set pool.kubernetes.kubeconfig",
        )
    return named


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
        # Before the event loop runs: from a cold disk it takes seconds, which the loop would stand still for.
        from kubernetes_asyncio.client.api_client import ApiClient  # noqa: PLC0415  # see the module

        self._settings, self._around, self._make_client = settings, around, ApiClient
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
                try:
                    client: Any = self._make_client(configuration)
                except (OSError, ValueError) as error:  # certificates that cannot be read
                    problem = f"cannot use the certificates: {error}"
                    raise KubeError(Reason.CREDENTIALS, problem) from error
                client.user_agent = f"gorgo-epp/{__version__}"
                self._client = client
            return self._client

    async def _distrust(self, client: Any) -> None:
        if self._client is client:
            self._client = None
            # This cuts the client's other watches: they resume with the new credentials.
            with contextlib.suppress(Exception):
                await client.close()


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
