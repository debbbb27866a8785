"""What is wrong with a cluster, in words that an operator can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.kube.problems import KubeError, Reason

if TYPE_CHECKING:
    from epp.config.kubernetes import Kubernetes
    from epp.kube.reflector import Resource


def advice(resource: Resource[Any], settings: Kubernetes, namespace: str, problem: KubeError) -> str:
    """One sentence: what fails and what to do about it."""
    name = resource.name
    group = resource.path.removeprefix("/apis/").split("/namespaces/")[0]
    if problem.reason is Reason.NOT_FOUND:
        way_out = (
            f"install its CRD, or set pool.kubernetes.selector instead of pool_name={settings.pool_name}"
            if name == "inferencepools"
            else "the API server is older than this picker needs"
        )
        return f"the API server does not serve {name} of {group}: {way_out}"
    if problem.reason is Reason.FORBIDDEN and name == "nodes":
        return (
            "the service account may not read nodes: regions and engine classes come from annotations and "
            "labels of pods alone; give it get, list and watch on nodes in a ClusterRole, or do without "
            f"(pool.kubernetes.watch_nodes: false in our configuration) ({problem.message})"
        )
    if problem.reason is Reason.FORBIDDEN:
        of = f"{name} of {group}" if name == "inferenceobjectives" else name
        return (
            f"the service account may not read {of}: give it get, list and watch on {name} "
            f"in a Role in namespace {namespace} ({problem.message})"
        )
    if problem.reason is Reason.UNAUTHORIZED:
        return f"the API server refuses the credentials for {name}: {problem.message}"
    return f"cannot follow {name}: {problem.message}"
