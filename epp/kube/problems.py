"""What can be wrong between a picker and an API server, and what an operator can do about it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epp.config.kubernetes import Kubernetes
    from epp.kube.reflector import Resource


class Reason(Enum):
    """Kind of failure; label of metrics."""

    NOT_FOUND = "not-found"  # the resource is not served: its CRD is not installed
    FORBIDDEN = "forbidden"  # RBAC
    UNAUTHORIZED = "unauthorized"  # the credentials are refused
    GONE = "gone"  # the resource version is too old: list again
    UNREACHABLE = "unreachable"  # no connection, TLS, a cut answer
    SERVER = "server"  # 5xx, too many requests, anything else that it answers
    MALFORMED = "malformed"  # an answer that is not the API's
    CREDENTIALS = "credentials"  # none to be found, or a plugin failed


class KubeError(Exception):
    """A call that did not succeed.

    Args:
        reason: kind.
        message: one sentence.
        retry_after_s: how long the server asks to be left alone, 0 when it does not say.
    """

    def __init__(self, reason: Reason, message: str, retry_after_s: float = 0.0) -> None:
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s
        super().__init__(message)


def reason_of(status: int) -> Reason:
    """Kind of failure of an HTTP status."""
    known = {401: Reason.UNAUTHORIZED, 403: Reason.FORBIDDEN, 404: Reason.NOT_FOUND, 410: Reason.GONE}
    return known.get(status, Reason.SERVER)


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
        of = f"{name} of {group}" if name in {"inferenceobjectives", "inferencemodelrewrites"} else name
        return (
            f"the service account may not read {of}: give it get, list and watch on {name} "
            f"in a Role in namespace {namespace} ({problem.message})"
        )
    if problem.reason is Reason.UNAUTHORIZED:
        return f"the API server refuses the credentials for {name}: {problem.message}"
    return f"cannot follow {name}: {problem.message}"
