"""From settings to the text that Envoy reads: a whole bootstrap.

Owns the outermost message and the text format. Writes a file only by atomic rename, which is also what Envoy
watches for.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from epp.envoy import messages as api
from epp.envoy.clusters import clusters, replicas
from epp.envoy.entry import entry_parts
from epp.envoy.listener import listener
from epp.envoy.observe import observer_clusters, observers
from epp.envoy.overload import overload_manager, watchdogs
from epp.envoy.regions import region_parts
from epp.envoy.relay import relay_bootstrap
from epp.envoy.relays import relay_cluster, relay_filters
from epp.envoy.replies import long_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import betterproto2

    from epp.envoy.settings import EnvoySettings

_HEADER = "# Rendered by `epp envoy render` (variant: {variant}). Change the settings, not this file.\n"


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


def render(settings: EnvoySettings, order: Sequence[str] = ()) -> str:
    """The bootstrap as YAML; see `bootstrap`.

    Raises:
        ConfigError: settings that contradict each other.
    """
    return _HEADER.format(variant=settings.variant) + _yaml(bootstrap(settings, order))


def render_relay(settings: EnvoySettings, region: str) -> str:
    """The bootstrap of a region's relay as YAML; see `epp.envoy.relay.relay_bootstrap`.

    Raises:
        ConfigError: no such relay, or settings that contradict each other.
    """
    return _HEADER.format(variant=f"relay of {region}") + _yaml(relay_bootstrap(settings, region))


def write(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader ever sees half of it.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; Envoy often runs as another user, and nothing here is secret.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _yaml(message: betterproto2.Message) -> str:
    # Field names stay as the API spells them; the library's own snake case makes consecutive_5_xx of 5xx.
    as_they_are = cast("betterproto2.Casing", str)
    tree = message.to_dict(casing=as_they_are)
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120))


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, which are scripts, line by line."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
