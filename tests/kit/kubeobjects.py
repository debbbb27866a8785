"""Objects that tests put into a cluster, and the client that puts them there: the same for every API server."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from tests.kit.kubestore import Object

NAMESPACE = "llm"
GROUP = "inference.networking.k8s.io"
OLD_GROUP = "inference.networking.x-k8s.io"
STARTED = "2026-01-01T00:00:00Z"
#: llm-d's plugin file, as its charts mount it.
PLUGINS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""


def pod(name: str, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None,
        node: str = "", ports: tuple[int, ...] = (8000,)) -> Object:  # fmt: skip
    """A pod as its owner writes it; `status` is what its kubelet adds."""
    container = {"name": "engine", "image": "engine", "ports": [{"containerPort": port} for port in ports]}
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "llm"} if labels is None else labels},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }
    if annotations:
        made["metadata"]["annotations"] = annotations
    if node:
        made["spec"]["nodeName"] = node
    return made


def pod_status(ip: str | list[str], *, ready: bool = True, phase: str = "Running", restarts: int = 0,
               started: str = STARTED) -> Object:  # fmt: skip
    """Status of a pod whose engine runs."""
    ips = [ip] if isinstance(ip, str) else ip
    container = {
        "name": "engine", "image": "engine", "imageID": "", "ready": ready, "restartCount": restarts,
        "state": {"running": {"startedAt": started}},
    }  # fmt: skip
    return {
        "phase": phase,
        "podIP": ips[0],
        "podIPs": [{"ip": each} for each in ips],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [container],
    }


def node(name: str, labels: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def pool(
    name: str = "pool", *, match: dict[str, str] | None = None, ports: tuple[int, ...] = (8000,)
) -> Object:
    spec = {
        "selector": {"matchLabels": match or {"app": "llm"}},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
    }
    return {"apiVersion": f"{GROUP}/v1", "kind": "InferencePool", "metadata": {"name": name}, "spec": spec}


def objective(name: str, priority: int | None, *, group: str = "llm-d.ai", pool_name: str = "pool") -> Object:
    spec: Object = {"poolRef": {"group": GROUP, "kind": "InferencePool", "name": pool_name}}
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name},
        "spec": spec,
    }


def rewrite(
    name: str, *rules: Object, group: str = "llm-d.ai", pool_name: str = "pool", **metadata: str
) -> Object:
    """An InferenceModelRewrite; `rule` makes its rules."""
    ref = {"group": GROUP, "kind": "InferencePool", "name": pool_name}
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name, **metadata},
        "spec": {"poolRef": ref, "rules": list(rules)},
    }


def rule(*models: str, **weights: int | None) -> Object:
    """A rule for these models, or any; ``weights`` are its targets', None for one without."""
    targets = [
        {"modelRewrite": name} | ({} if weight is None else {"weight": weight})
        for name, weight in weights.items()
    ]
    matches = [{"model": {"type": "Exact", "value": model}} for model in models]
    return ({"matches": matches} if matches else {}) | {"targets": targets}


def crd(group: str, version: str, plural: str, kind: str) -> Object:
    """A custom resource that takes anything."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    entry = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    metadata: Object = {"name": f"{plural}.{group}"}
    if group.endswith("k8s.io"):  # groups of the project itself need somebody's word
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [entry],
        },
    }


POOL_CRD = crd(GROUP, "v1", "inferencepools", "InferencePool")
OBJECTIVE_CRD = crd("llm-d.ai", "v1alpha2", "inferenceobjectives", "InferenceObjective")
OLD_OBJECTIVE_CRD = crd(OLD_GROUP, "v1alpha2", "inferenceobjectives", "InferenceObjective")
REWRITE_CRD = crd("llm-d.ai", "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite")
OLD_REWRITE_CRD = crd(OLD_GROUP, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite")

_PLURALS = {
    "Pod": "pods", "Node": "nodes", "Namespace": "namespaces", "Service": "services",
    "EndpointSlice": "endpointslices", "InferencePool": "inferencepools",
    "InferenceObjective": "inferenceobjectives", "InferenceModelRewrite": "inferencemodelrewrites",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Deployment": "deployments",
    "Role": "roles", "RoleBinding": "rolebindings", "ServiceAccount": "serviceaccounts",
}  # fmt: skip
_CLUSTER_WIDE = {"Node", "Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
_MERGE = {"Content-Type": "application/merge-patch+json"}


class KubeClient:
    """An administrator with plain HTTP, who shares no code with what is tested."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, connector=aiohttp.TCPConnector(ssl=context)
        )

    async def close(self) -> None:
        await self._session.close()
        await asyncio.sleep(
            0.05
        )  # TLS connections say goodbye after the session believes that they are closed

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        async with self._session.request(method, self._url + path, json=body, headers=headers) as response:
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {await response.text()}")
            return await response.json()

    async def create(self, made: Object) -> Any:
        return await self.call("POST", path_of(made), made)

    async def patch(self, target: Object, change: Object) -> Any:
        return await self.call("PATCH", path_of(target, named=True), change, _MERGE)

    async def set_status(self, target: Object, status: Object) -> Any:
        return await self.call("PATCH", f"{path_of(target, named=True)}/status", {"status": status}, _MERGE)

    async def run_pod(self, made: Object, ip: str | list[str], **status: Any) -> None:
        """Create a pod and let its kubelet say that it runs."""
        await self.create(made)
        await self.set_status(made, pod_status(ip, **status))

    async def delete(self, target: Object, *, grace_s: int = 0) -> Any:
        return await self.call("DELETE", f"{path_of(target, named=True)}?gracePeriodSeconds={grace_s}")


def path_of(target: Object, *, named: bool = False) -> str:
    version, kind = target["apiVersion"], target["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = "" if kind in _CLUSTER_WIDE else f"/namespaces/{NAMESPACE}"
    return f"{root}{scope}/{_PLURALS[kind]}" + (f"/{target['metadata']['name']}" if named else "")
