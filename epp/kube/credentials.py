"""From the configuration to a client of the API server, by the library's own loaders.

Owns where credentials come from: the kubeconfig file that the configuration names, else the pod's service
account, else ``$KUBECONFIG`` or ``~/.kube/config``. Tokens rotate: the service account's is read again every
minute, a kubeconfig's (token file, exec plugin, OIDC) are asked for again before they expire. Client
certificates and CAs live in a TLS context: `epp.kube.api` builds a new client when the old one is refused.

The library is imported here and in `epp.kube.api` alone, and only when a cluster is configured.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epp.kube.problems import KubeError, Reason
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from epp.clock import Clock
    from epp.config.kubernetes import Kubernetes

T = TypeVar("T")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: How often a kubeconfig's credentials are looked at again; exec plugins run only when theirs expire.
REFRESH_S = 60.0
#: Longest time that credentials may take: a plugin that hangs would hold every call for ever.
LOAD_S = 60.0
_AUTH = "BearerToken"


@dataclass(frozen=True, slots=True)
class Surroundings:
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


async def load(settings: Kubernetes, around: Surroundings, clock: Clock) -> Any:
    """The library's configuration, with credentials that refresh themselves.

    Raises:
        KubeError: there are no credentials, or they cannot be used.
    """
    configuration = await _beside_the_loop(lambda: _load(settings, around, clock))
    _keep_fresh(configuration)
    return configuration


async def _load(settings: Kubernetes, around: Surroundings, clock: Clock) -> Any:
    from kubernetes_asyncio.client.configuration import Configuration  # noqa: PLC0415  # see the module
    from kubernetes_asyncio.config import load_incluster_config  # noqa: PLC0415

    configuration = Configuration()
    if settings.kubeconfig or not around.environ.get("KUBERNETES_SERVICE_HOST"):
        await _from_kubeconfig(configuration, settings, around, clock)
    else:
        load_incluster_config(  # type: ignore[no-untyped-call]  # the library leaves it untyped
            client_configuration=configuration,
            token_filename=str(around.service_account / "token"),
            cert_filename=str(around.service_account / "ca.crt"),
            environ=around.environ,
        )
    return configuration


async def _beside_the_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine of the library's in a thread: it reads files as if they always answered.

    Raises:
        KubeError: whatever it raises, in our words, or that it takes too long.
    """
    try:
        async with asyncio.timeout(LOAD_S):  # what blocks does not see its own limit
            return await in_daemon_thread(lambda: asyncio.run(asyncio.wait_for(work(), LOAD_S)))
    except KubeError:
        raise
    except Exception as error:  # files, plugins and token servers fail in any way they like
        raise _unusable(error) from error


async def _from_kubeconfig(
    configuration: Any, settings: Kubernetes, around: Surroundings, clock: Clock
) -> None:
    from kubernetes_asyncio.config.kube_config import (  # noqa: PLC0415  # see the module
        KubeConfigLoader,
        KubeConfigMerger,
    )

    merged: Any = KubeConfigMerger(_kubeconfig_files(settings, around)).config
    loader = KubeConfigLoader(merged, config_base_path=None)
    await loader.load_and_set(configuration)
    fresh_until_s = clock.mono_s() + REFRESH_S

    async def refresh(configuration: Any) -> None:
        nonlocal fresh_until_s
        if clock.mono_s() >= fresh_until_s:
            fresh_until_s = clock.mono_s() + REFRESH_S
            await loader.load_and_set(configuration)

    configuration.refresh_api_key_hook = refresh


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


def _keep_fresh(configuration: Any) -> None:
    """Wrap the library's refreshing: its errors become ours; no token keeps the line break of its file."""
    inner: Callable[[Any], Awaitable[None] | None] | None = configuration.refresh_api_key_hook

    async def refresh(configuration: Any) -> None:
        async def renew() -> None:
            waiting = inner(configuration) if inner is not None else None
            if waiting is not None:
                await waiting

        await _beside_the_loop(renew)
        _strip(configuration)

    configuration.refresh_api_key_hook = refresh
    _strip(configuration)


def _strip(configuration: Any) -> None:
    if _AUTH in configuration.api_key:
        configuration.api_key[_AUTH] = configuration.api_key[_AUTH].strip()


def _unusable(error: Exception) -> KubeError:
    words = f"no answer within {LOAD_S:g} s" if isinstance(error, TimeoutError) else str(error)
    return KubeError(Reason.CREDENTIALS, f"cannot use the credentials: {words or type(error).__name__}")
