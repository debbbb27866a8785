"""Finds its way in what Envoy dumps: listeners, routes, clusters, filters by type. Pure."""

from __future__ import annotations

import re
from typing import Any

Tree = dict[str, Any]

DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key of the endpoint picker protocol."""


def find_types(tree: Any, name: str) -> list[Tree]:
    """Every message of a type (the last part of its ``@type``), outermost first, wherever it is."""
    if isinstance(tree, list):
        return [found for item in tree for found in find_types(item, name)]
    if not isinstance(tree, dict):
        return []
    here = [tree] if str(tree.get("@type", "")).rpartition(".")[2] == name else []
    return here + [found for item in tree.values() for found in find_types(item, name)]


def listeners_of(dump: Tree) -> list[Tree]:
    """Listeners, static and dynamic."""
    found = []
    for config in find_types(dump, "ListenersConfigDump"):
        found += [one.get("listener", {}) for one in config.get("static_listeners", [])]
        found += [
            one.get("active_state", {}).get("listener", {}) for one in config.get("dynamic_listeners", [])
        ]
    return found


def clusters_of(dump: Tree) -> dict[str, Tree]:
    """Clusters by name, static and dynamic."""
    found: dict[str, Tree] = {}
    for config in find_types(dump, "ClustersConfigDump"):
        for one in (*config.get("static_clusters", []), *config.get("dynamic_active_clusters", [])):
            cluster = one.get("cluster", {})
            found[cluster.get("name", "")] = cluster
    return found


def routes_of(dump: Tree, manager: Tree) -> list[Tree]:
    """Route configurations of a connection manager: its own, or those that it subscribes to."""
    if "route_config" in manager:
        return [manager["route_config"]]
    wanted = manager.get("rds", {}).get("route_config_name")
    found = []
    for config in find_types(dump, "RoutesConfigDump"):
        for one in (*config.get("static_route_configs", []), *config.get("dynamic_route_configs", [])):
            routes = one.get("route_config", {})
            if wanted is None or routes.get("name") == wanted:
                found.append(routes)
    return found


def removes_header(manager: Tree, header: str) -> bool:
    """Whether a request header is removed before routes and filters see it."""
    for extension in manager.get("early_header_mutation_extensions", []):
        for mutation in extension.get("typed_config", {}).get("mutations", []):
            if mutation.get("remove", "").lower() == header:
                return True
            matcher = mutation.get("remove_on_match", {}).get("key_matcher", {})
            prefix, exact = matcher.get("prefix"), matcher.get("exact")
            if (prefix and header.startswith(prefix.lower())) or (exact and exact.lower() == header):
                return True
    return False


def seconds(text: str | None, default: float) -> float:
    """A duration as JSON spells it, ``0.250s``."""
    found = re.fullmatch(r"(-?[0-9.]+)s", text or "")
    return float(found[1]) if found else default
