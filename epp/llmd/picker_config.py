"""`EndpointPickerConfig`, llm-d's plugin configuration: its shape, strictly decoded.

Owns the shape alone; `plugins` says what the plugins mean here. Source [E].
"""

from __future__ import annotations

from typing import Any

import msgspec

from epp.config.strict import decode
from epp.errors import ConfigError

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
    for key, reference in _references(config):
        if reference not in names:
            known = ", ".join(names) or "the file has none"
            raise ConfigError(source, key, f"no plugin is named {reference!r}", f"plugins: {known}")
    return config


def _references(config: EndpointPickerConfig) -> list[tuple[str, str]]:
    found = [
        (f"schedulingProfiles[{index}].plugins[{place}].pluginRef", entry.plugin_ref)
        for index, profile in enumerate(config.scheduling_profiles)
        for place, entry in enumerate(profile.plugins)
    ]
    found += [
        (f"requestHandler.parsers[{index}].pluginRef", entry.plugin_ref)
        for index, entry in enumerate(config.request_handler.parsers)
    ]
    for index, source in enumerate(config.data_layer.sources):
        key = f"dataLayer.sources[{index}]"
        found.append((f"{key}.pluginRef", source.plugin_ref))
        found += [(f"{key}.extractors", entry.plugin_ref) for entry in source.extractors]
    single = {
        "parser": config.parser,
        "saturationDetector": config.saturation_detector,
        "dataLayer.discovery": config.data_layer.discovery,
        "dataLayer.peerDiscovery": config.data_layer.peer_discovery,
    }
    return found + [(key, entry.plugin_ref) for key, entry in single.items() if entry is not None]
