"""From settings to the text that Envoy reads: a whole bootstrap.

Owns the text format. Writes a file only by atomic rename, which is also what Envoy watches for.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from epp.envoy.prepared import prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.envoy.settings import EnvoySettings

_HEADER = "# Rendered by `epp envoy render` (variant: {variant}). Change the settings, not this file.\n"


def render(settings: EnvoySettings, order: Sequence[str] = ()) -> str:
    """The bootstrap as YAML; see `epp.envoy.bootstrap.bootstrap`.

    Raises:
        ConfigError: settings that contradict each other.
        EppError: they ask for more than is prepared, and the library of Envoy's API is not installed.
    """
    tree = prepared(settings)
    if tree is None:
        from epp.envoy.bootstrap import bootstrap, tree_of  # noqa: PLC0415  # takes a second

        tree = tree_of(bootstrap(settings, order))
    return _HEADER.format(variant=settings.variant) + _yaml(tree)


def render_relay(settings: EnvoySettings, region: str) -> str:
    """The bootstrap of a region's relay as YAML; see `epp.envoy.relay.relay_bootstrap`.

    Raises:
        ConfigError: no such relay, or settings that contradict each other.
    """
    from epp.envoy.bootstrap import tree_of  # noqa: PLC0415  # likewise
    from epp.envoy.relay import relay_bootstrap  # noqa: PLC0415

    return _HEADER.format(variant=f"relay of {region}") + _yaml(tree_of(relay_bootstrap(settings, region)))


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


def _yaml(tree: dict[str, Any]) -> str:
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120))


class _Dumper(yaml.CSafeDumper):
    """Writes texts of several lines, which are scripts, line by line."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
