"""Reads what Envoy's admin interface dumps: what asks the picker, and where its routes lead. Pure.

Reads any Envoy, also such as we did not configure. Envoy's JSON leaves out what has its default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Tree = dict[str, Any]

DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key of the endpoint picker protocol."""


@dataclass(frozen=True, slots=True)
class ExtProcUse:
    """A connection manager that asks a picker.

    Attributes:
        manager: its configuration.
        ext_proc: the filter.
        routes: routes on which the picker is asked: name, route and virtual host of each.
        targets: clusters that these lead to.
    """

    manager: Tree
    ext_proc: Tree
    routes: list[tuple[str, Tree, Tree]]
    targets: list[Tree]

    @property
    def picker(self) -> str:
        """Name the picker's cluster."""
        return str(at(self.ext_proc, "grpc_service.envoy_grpc.cluster_name"))

    @property
    def mode(self) -> Tree:
        """Give what passes the picker."""
        return dict(at(self.ext_proc, "processing_mode", {}))

    @property
    def shows_answers(self) -> bool:
        """Tell whether answers pass the picker."""
        return self.mode.get("response_body_mode") in ("STREAMED", "FULL_DUPLEX_STREAMED")

    @property
    def received(self) -> list[str]:
        """List the metadata namespaces that the picker may set."""
        return list(at(self.ext_proc, "metadata_options.receiving_namespaces.untyped", []))


class Envoy:
    """An Envoy's configuration.

    Attributes:
        dump: answer of ``/config_dump``.
        statuses: answer of ``/clusters?format=json``, empty when there is none.
        clusters: clusters by name.
        managers: connection managers.
        asked: those that ask a picker.
        routes: routes of all these.
    """

    def __init__(self, dump: Tree, statuses: Tree | None = None) -> None:
        self.dump, self.statuses = dump, statuses or {}
        self.clusters: dict[str, Tree] = {one["name"]: one for one in find_types(dump, "Cluster")}
        self.managers = find_types(find_types(dump, "ListenersConfigDump"), "HttpConnectionManager")
        self.asked = [
            self._asked(manager, ext_proc)
            for manager in self.managers
            for ext_proc in find_types(manager.get("http_filters"), "ExternalProcessor")
        ]

        self.routes = [route for asked in self.asked for route in asked.routes]

    def _asked(self, manager: Tree, ext_proc: Tree) -> ExtProcUse:
        routes = [
            (route.get("name") or action.get("cluster") or "without a name", route, host)
            for configuration in self._route_configurations(manager)
            for host in configuration.get("virtual_hosts", [])
            for route in host.get("routes", [])
            if (action := route.get("route")) is not None
            and not (_not_asked(host) or _not_asked(route) or self._is_nowhere(action))
        ]
        names = {name for _, route, _ in routes for name in _clusters_of(route["route"])}
        return ExtProcUse(
            manager, ext_proc, routes, [self.clusters[name] for name in sorted(names & self.clusters.keys())]
        )

    def _route_configurations(self, manager: Tree) -> list[Tree]:
        """Give a connection manager's own routes, or those that it subscribes to."""
        if "route_config" in manager:
            return [manager["route_config"]]
        wanted = at(manager, "rds.route_config_name")
        return [
            one for one in find_types(self.dump, "RouteConfiguration") if wanted in (None, one.get("name"))
        ]

    def _is_nowhere(self, action: Tree) -> bool:
        """Tell whether a route leads to a cluster without hosts: then it only refuses."""
        cluster = self.clusters.get(action.get("cluster", ""), {"type": ""})
        return cluster.get("type", "STATIC") == "STATIC" and not at(cluster, "load_assignment.endpoints")


def _clusters_of(action: Tree) -> list[str]:
    weighted = at(action, "weighted_clusters.clusters", [])
    return [one.get("cluster") or one.get("name", "") for one in (action, *weighted)]


def _not_asked(holder: Tree) -> bool:
    filters = holder.get("typed_per_filter_config")
    return any(one.get("disabled") for one in find_types(filters, "ExtProcPerRoute"))


def at(tree: Tree, path: str, default: Any = None) -> Any:
    """Follow keys separated by dots; the default where one is missing."""
    found: Any = tree
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return default
        found = found[key]
    return found


def messages(tree: Any) -> Iterator[Tree]:
    """Walk through every message in a tree, outermost first."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from messages(item)


def find_types(tree: Any, name: str) -> list[Tree]:
    """Find every message of a type (the last part of its ``@type``), outermost first."""
    return [one for one in messages(tree) if str(one.get("@type")).rpartition(".")[2] == name]


def removes_header(manager: Tree, header: str) -> bool:
    """Tell whether a request header is removed before routes and filters see it."""
    for one in messages(manager.get("early_header_mutation_extensions")):
        matcher = at(one, "remove_on_match.key_matcher", {})
        prefix = matcher.get("prefix", "").lower()
        exact = one.get("remove"), matcher.get("exact")
        if (prefix and header.startswith(prefix)) or header in [str(name).lower() for name in exact]:
            return True
    return False


def seconds(text: str | None, default: float) -> float:
    """Read a duration as JSON spells it, ``0.250s``."""
    found = re.fullmatch(r"(-?[0-9.]+)s", text or "")
    return float(found[1]) if found else default


def is_dump(answer: Any) -> bool:
    """Tell whether it is what Envoy answers, a list of typed messages; other servers have other JSON."""
    configs = answer.get("configs") if isinstance(answer, dict) else None
    return isinstance(configs, list) and all(isinstance(one, dict) and "@type" in one for one in configs)
