"""From the configuration to a client of the API server, by the library's own loaders.

Owns where credentials come from: the kubeconfig file that the configuration names, else the pod's service
account, else ``$KUBECONFIG`` or ``~/.kube/config``. Credentials rotate: when they are refused `epp.kube.api`
builds a new client, which loads them anew.

The library is imported here and in `epp.kube.api` alone, and only when a cluster is configured.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.kube.problems import KubeError, Reason
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.config.kubernetes import Kubernetes

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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
