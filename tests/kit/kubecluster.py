"""One face for both API servers, the kit's and the real one, so that the same cases run on either."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import PATIENCE_S, following, kubeconfig, nowhere
from tests.kit.kubereal import ADMIN, PICKER, RealKube
from tests.kit.kubeserver import KubeServer
from tests.kit.tcpproxy import TcpProxy

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from epp.config.kubernetes import Kubernetes
    from tests.kit.kubefollow import Following
    from tests.kit.kubestore import Object

_READ = ["get", "list", "watch"]
#: What a picker may read, by API group.
RIGHTS = {
    "": ["pods", "nodes"],
    "discovery.k8s.io": ["endpointslices"],
    objects.GROUP: ["inferencepools"],
    objects.OLD_GROUP: ["inferenceobjectives", "inferencemodelrewrites"],
    "llm-d.ai": ["inferenceobjectives", "inferencemodelrewrites"],
}


class Cluster:
    """A cluster behind a network that can fail.

    Args:
        server: the kit's server, or the real one.
        folder: where files may be written.
    """

    def __init__(self, server: KubeServer | RealKube, folder: Path) -> None:
        self.server, self._folder = server, folder
        self.real = isinstance(server, RealKube)
        self.proxy = TcpProxy(server.port)
        scheme = "https" if self.real else "http"
        self.client = objects.KubeClient(f"{scheme}://127.0.0.1:{server.port}", ADMIN)
        self._scheme = scheme

    async def start(self) -> None:
        await self.proxy.start()
        if self.real:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects.NAMESPACE}}
            with contextlib.suppress(RuntimeError):  # it stays from the case before
                await self.client.create(namespace)
            await self.permit(())

    async def stop(self) -> None:
        await self.proxy.stop()
        if self.real:
            await self._sweep()
        await self.client.close()

    def follow(self, **settings: Any) -> AbstractAsyncContextManager[Following]:
        """Follow this cluster with a picker's rights."""
        from epp.config.kubernetes import Kubernetes  # noqa: PLC0415  # the kit is used without it, too

        url = f"{self._scheme}://127.0.0.1:{self.proxy.port}"
        config = kubeconfig(self._folder / "kubeconfig", url, token=PICKER)
        made: Kubernetes = Kubernetes(namespace=objects.NAMESPACE, kubeconfig=str(config), **settings)
        return following(made, nowhere(self._folder))

    async def install(self, *crds: Object) -> None:
        """Install custom resources and wait until they are served."""
        for crd in crds:
            await self.client.create(crd)
            spec = crd["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            await self._until(path, there=True)

    async def permit(self, denied: tuple[str, ...]) -> None:
        """Let the picker read everything but these plurals, or ``plural.group``."""
        if isinstance(self.server, KubeServer):
            self.server.denied = set(denied)
            return
        rules = [
            {
                "apiGroups": [group],
                "resources": left,
                "verbs": _READ,
            }
            for group, names in RIGHTS.items()
            if (left := [name for name in names if not {name, f"{name}.{group}"} & set(denied)])
        ]
        version = "rbac.authorization.k8s.io/v1"
        role = {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "picker"}, "rules": rules}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "picker"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "picker"}
        binding = {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "picker"},
                   "roleRef": ref, "subjects": [subject]}  # fmt: skip
        for made in (role, binding):
            try:
                await self.client.create(made)
            except RuntimeError:
                if made is role:
                    await self.client.patch(role, {"rules": rules})

    async def restart(self, *, forget: bool = False) -> None:
        """Stop the server and start it again, with or without its history."""
        self.proxy.cut()
        if isinstance(self.server, KubeServer):
            await self.server.stop()
            if forget:
                await self.server.compact()
            await self.server.start()
            return
        self.proxy.refusing = True
        await asyncio.to_thread(self.server.stop_apiserver)
        if forget:
            await asyncio.to_thread(self.server.compact)
        await asyncio.to_thread(self.server.start_apiserver)
        self.proxy.refusing = False

    async def _until(self, path: str, *, there: bool) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                await self.client.call("GET", path)
                found = True
            except RuntimeError:
                found = False
            if found is there:
                return
            assert time.monotonic() < deadline_s, f"{path} is {'still' if found else 'not'} served"
            await asyncio.sleep(0.05)

    async def _sweep(self) -> None:
        """Leave nothing to the next case."""
        call = self.client.call
        path = f"/api/v1/namespaces/{objects.NAMESPACE}/pods?gracePeriodSeconds=0"
        await call("DELETE", path)
        await call("DELETE", "/api/v1/nodes")
        await call("DELETE", f"/apis/discovery.k8s.io/v1/namespaces/{objects.NAMESPACE}/endpointslices")
        root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for crd in (await call("GET", root))["items"]:
            name, spec = crd["metadata"]["name"], crd["spec"]
            await call("DELETE", f"{root}/{name}")
            await self._until(
                f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}", there=False
            )
