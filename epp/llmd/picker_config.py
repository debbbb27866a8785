"""`EndpointPickerConfig`, llm-d's plugin configuration: its shape, strictly decoded.

Owns the shape alone; `plugins` says what the plugins mean here. Source [E].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.strict import decode
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KIND = "EndpointPickerConfig"
#: llm-d's group, and the one that it replaces.
API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Base of all parts: immutable, strict, camelCase in the file."""


class Plugin(_Part, frozen=True):
    """A plugin and its parameters; its name defaults to its type."""

    type: str
    name: str = ""
    parameters: dict[str, Any] | None = None

    @property
    def known_as(self) -> str:
        """What references call it."""
        return self.name or self.type


class Reference(_Part, frozen=True):
    """A plugin by name; the weight is for scorers."""

    plugin_ref: str
    weight: float | None = None


class Profile(_Part, frozen=True):
    """A scheduling profile."""

    name: str
    plugins: list[Reference] = []


class Source(_Part, frozen=True):
    """A data source and who reads it."""

    plugin_ref: str
    extractors: list[Reference] = []


class DataLayer(_Part, frozen=True):
    """Where signals come from."""

    inject_defaults: bool = True
    sources: list[Source] = []
    discovery: Reference | None = None
    peer_discovery: Reference | None = None
    cross_replica_syncer_plugin_ref: str = ""
    cross_replica_sync_interval: str = ""


class RequestHandler(_Part, frozen=True):
    """Who reads requests."""

    parsers: list[Reference] = []


class EndpointPickerConfig(_Part, frozen=True):
    """The whole file. `flowControl` is left open: it is refused as a whole."""

    api_version: str
    kind: str
    feature_gates: list[str] = []
    plugins: list[Plugin] = []
    scheduling_profiles: list[Profile] = []
    data_layer: DataLayer = DataLayer()
    request_handler: RequestHandler = RequestHandler()
    parser: Reference | None = None
    saturation_detector: Reference | None = None
    flow_control: dict[str, Any] | None = None


def parse_picker_config(text: str | bytes, source: str) -> EndpointPickerConfig:
    """YAML or JSON text to a configuration whose references all lead to a plugin.

    Raises:
        ConfigError: not this kind of file, an unknown key, a repeated or unknown plugin name.
    """
    config = decode(text, EndpointPickerConfig, source)
    if config.kind != KIND:
        raise ConfigError(source, "kind", f"{config.kind!r} is not {KIND}")
    if config.api_version not in API_VERSIONS:
        known = " or ".join(API_VERSIONS)
        raise ConfigError(source, "apiVersion", f"{config.api_version!r} is not known", known)
    names = [plugin.known_as for plugin in config.plugins]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigError(
                source, f"plugins[{position}]", f"a second plugin named {name!r}", "give it a name"
            )
    for key, reference in _references(msgspec.to_builtins(config), ""):
        if reference not in names:
            known = ", ".join(names) or "the file has none"
            raise ConfigError(source, key, f"no plugin is named {reference!r}", f"plugins: {known}")
    return config


def _references(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every `pluginRef`, with its place."""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f"{key}.{name}".removeprefix("."), part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((f"{key}[{place}]", part) for place, part in enumerate(value))
    for inner, part in parts:
        if inner.endswith(".pluginRef"):
            yield inner, str(part)
        elif not inner.endswith(".parameters"):
            yield from _references(part, inner)
