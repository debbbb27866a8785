"""The Envoy before all regions: each request to the nearest region that is up and may have it.

Owns the order of regions. A script sorts them by the distance from the user's coordinates, where the
operator's edge has set these, and names those that all rules allow. The loopback listeners of
`epp.envoy.regions` let nothing else pass, and answer at once for a region that is down: the next is tried.
Without coordinates the cluster's priorities are the order: measured round trips, which a new EDS file renews,
else the configuration's.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.config.address import split_address
from epp.config.eds import PLAINTEXT, REPLICAS, eds_file, lb_endpoint
from epp.config.federation import ENTRY_NAME, FORWARD_HEADER
from epp.config.relays import UNSERVED_HEADER
from epp.envoy import messages as api
from epp.envoy.clusters import DESTINATION_KEY, DESTINATION_NAMESPACE, FORWARD_NAMESPACE, replicas
from epp.envoy.filters import next_priority, router_filter
from epp.envoy.listener import connection_manager, listener, route_configuration, to_replicas
from epp.envoy.regions import forwarders, peer_clusters
from epp.errors import ConfigError
from epp.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.envoy.settings import EnvoySettings

COORDINATES_HEADER = "x-user-coordinates"
"""Request header ``latitude,longitude`` in degrees, which the operator's edge sets."""

_TRIES, _TIMEOUT_S = 5, 1.0


def entry_parts(
    settings: EnvoySettings, order: Sequence[str]
) -> tuple[list[api.listener.Listener], list[api.cluster.Cluster]]:
    """Listeners and clusters of the entry.

    Args:
        settings: with `federation` of no region.
        order: regions as they are tried for users of whom nobody says where they are.

    Raises:
        ConfigError: no regions.
    """
    if not settings.forwards:
        raise ConfigError("epp.yaml", "relays.regions", "there is no region to send requests to")
    cluster = replicas(settings)
    # Of a region's errors its own Envoy takes care.
    cluster.outlier_detection = None
    if not settings.eds_path:
        assignment = _assignment(settings, order)
        cluster.load_assignment = api.endpoint.ClusterLoadAssignment.from_dict(assignment)
    route = to_replicas(settings, api.route.RouteMatch(prefix="/"), retry=_retry_policy(len(order)))
    routes = route_configuration(settings, [route])
    # What the retry protocol asks and tells is between clients and regions.
    host = routes.virtual_hosts[0]
    host.request_headers_to_remove, host.response_headers_to_add = [], []
    host.response_headers_to_remove = [UNSERVED_HEADER]
    manager = connection_manager(settings, [])
    manager.route_config = routes
    script = api.lua_filter("envoy.filters.http.lua", _script(settings), "nearest")
    manager.http_filters = [script, router_filter()]
    made = listener(settings, [])
    made.filter_chains = [api.filter_chain(manager)]
    return [made, *forwarders(settings)], [cluster, *peer_clusters(settings, sni=ENTRY_NAME)]


def _retry_policy(regions: int) -> api.route.RetryPolicy:
    """The next of the script's order, else of the priorities, until all have been tried."""
    return api.route.RetryPolicy(
        retry_on="retriable-headers",
        retriable_headers=[api.route.HeaderMatcher(name=UNSERVED_HEADER, present_match=True)],
        num_retries=regions,
        retry_priority=api.route.RetryPolicyRetryPriority(**next_priority()),
        # The answer that one is not to be had comes from this Envoy.
        retry_back_off=api.route.RetryPolicyRetryBackOff(base_interval=api.ms(1), max_interval=api.ms(5)),
    )


def _script(settings: EnvoySettings) -> str:
    """The Lua source with its parameters in front."""
    places = settings.federation.coordinates if settings.federation else {}
    regions = [
        {"name": region, "address": address}
        | (dict(zip(("lat", "lon"), places[region], strict=True)) if region in places else {})
        for region, address in settings.forwards.items()
    ]
    rules = [
        {"path": rule.path_prefix, "allow": dict.fromkeys(rule.allow, True)}
        | ({"header": rule.header.lower(), "value": rule.value} if rule.header else {})
        for rule in settings.region_rules
        # Of models the entry knows nothing: the region's picker obeys these.
        if not rule.model
    ]
    parameters = {
        "REGIONS": regions,
        "RULES": rules,
        "COORDINATES_HEADER": COORDINATES_HEADER,
        "FORWARD_NAMESPACE": FORWARD_NAMESPACE,
        "FORWARD_HEADER": FORWARD_HEADER,
        "DESTINATION_NAMESPACE": DESTINATION_NAMESPACE,
        "DESTINATION_KEY": DESTINATION_KEY,
    }
    head = "".join(f"local {name} = {_lua(value)}\n" for name, value in parameters.items())
    return f"{head}\n{Path(__file__).with_name('entry.lua').read_text()}"


def _lua(value: Any) -> str:
    """A value as Lua writes it; a JSON string of ASCII is a Lua string, too."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'[{_lua(key)}] = {_lua(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"{{ {', '.join(map(_lua, value))} }}"
    return json.dumps(value)


def entry_eds(settings: EnvoySettings, order: Sequence[str]) -> bytes:
    """The EDS file of the entry: regions in this order."""
    return eds_file(_assignment(settings, order, PLAINTEXT))


def _assignment(settings: EnvoySettings, order: Sequence[str], plaintext: str = "") -> dict[str, Any]:
    hosts = [lb_endpoint(Endpoint(settings.forwards[region]), plaintext) for region in order]
    groups = [{"priority": number, "lb_endpoints": [host]} for number, host in enumerate(hosts)]
    return {"cluster_name": REPLICAS, "endpoints": groups}


def measured_order(addresses: Mapping[str, str]) -> list[str]:
    """Regions by round trip from here, the median of a few connects; those out of reach last, as they come.

    Args:
        addresses: region -> ``host:port``.
    """
    reached = {region: _round_trip_s(address) for region, address in addresses.items()}
    return sorted(addresses, key=reached.__getitem__)


def _round_trip_s(address: str) -> float:
    """Seconds that a TCP connection takes to open, infinite where none does."""
    found = []
    for _ in range(_TRIES):
        start_s = time.perf_counter()
        try:
            socket.create_connection(split_address(address), _TIMEOUT_S).close()
        except OSError:
            return math.inf
        found.append(time.perf_counter() - start_s)
    return statistics.median(found)
