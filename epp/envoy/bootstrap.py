"""The outermost message: the whole configuration of one Envoy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.envoy import messages as api
from epp.envoy.clusters import clusters, replicas
from epp.envoy.entry import entry_parts
from epp.envoy.listener import listener
from epp.envoy.observe import observer_clusters, observers
from epp.envoy.overload import overload_manager, watchdogs
from epp.envoy.regions import region_parts
from epp.envoy.relays import relay_cluster, relay_filters
from epp.envoy.replies import long_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import betterproto2

    from epp.envoy.settings import EnvoySettings


def bootstrap(settings: EnvoySettings, order: Sequence[str] = ()) -> api.bootstrap.Bootstrap:
    """The whole configuration of one Envoy.

    Args:
        settings: what it is to do.
        order: for the entry before all regions: `entry_parts`; as configured when empty.

    Raises:
        ConfigError: settings that contradict each other.
    """
    if settings.federation is None:
        upstream = relay_cluster(settings, settings.relays) if settings.relays else replicas(settings)
        listeners = [listener(settings, [*observers(settings), *relay_filters(settings)])]
        all_clusters = [*clusters(settings, upstream), *observer_clusters(settings)]
    elif settings.federation.region:
        listeners, all_clusters = region_parts(settings)
    else:
        listeners, all_clusters = entry_parts(settings, order or list(settings.forwards))
    return api.bootstrap.Bootstrap(
        # EDS asks under a name, even from a file.
        node=api.core.Node(id="epp-envoy", cluster="epp"),
        admin=api.bootstrap.Admin(address=api.socket_address("127.0.0.1", settings.admin_port)),
        overload_manager=overload_manager(settings),
        watchdogs=watchdogs(),
        layered_runtime=long_patterns(),
        static_resources=api.bootstrap.BootstrapStaticResources(listeners=listeners, clusters=all_clusters),
    )


def tree_of(message: betterproto2.Message) -> dict[str, Any]:
    """The message as what YAML and JSON are written from."""
    # Field names stay as the API spells them; the library's own snake case makes consecutive_5_xx of 5xx.
    return message.to_dict(casing=str)  # type: ignore[arg-type]  # it takes any function
