"""`EndpointPickerConfig`, llm-d's plugin configuration: its shape, strictly decoded.

Owns the shape alone; `plugins` says what the plugins mean here. Source [E].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from epp.config.strict import convert, load_yaml
from epp.errors import ConfigError, raise_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KIND = "EndpointPickerConfig"
#: llm-d's group, and the one that it replaces.
API_VERSIONS = ("llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
#: Of requests that are read here.
PARSERS = [f"{api}-parser" for api in ("openai", "anthropic", "vllmhttp", "sglanghttp", "passthrough")]
#: Plugins that llm-d makes where they are referred to and not listed.
_MADE = frozenset([*PARSERS, "vllmgrpc-parser", "vertexai-parser", "utilization-detector"])


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

    name: Annotated[str, msgspec.Meta(min_length=1)]
    plugins: list[Reference] = []


class Source(_Part, frozen=True):
    """A data source and who reads it."""

    plugin_ref: str
    extractors: list[Reference] = []


class Discovery(_Part, frozen=True):
    """Who finds endpoints, by either of the keys that llm-d has had for it."""

    plugin_ref: str | None = None
    endpoints: Reference | None = None


class DataLayer(_Part, frozen=True):
    """Where signals come from."""

    inject_defaults: bool = True
    sources: list[Source] = []
    discovery: Discovery | None = None
    peer_discovery: Reference | None = None
    cross_replica_syncer_plugin_ref: str = ""
    cross_replica_sync_interval: str = ""


class RequestHandler(_Part, frozen=True):
    """Who reads requests."""

    parsers: list[Reference] = []


class PriorityBand(_Part, frozen=True):
    """How requests of one priority wait."""

    priority: int = 0
    max_requests: int | str = 0
    max_bytes: int | str = 0
    default_request_ttl: str = msgspec.field(default="", name="defaultRequestTTL")
    fairness_policy_ref: str = "global-strict-fairness-policy"
    ordering_policy_ref: str = "fcfs-ordering-policy"


class FlowControl(_Part, frozen=True):
    """How requests wait, and when they need not."""

    max_requests: int | str = 0
    max_bytes: int | str = 0
    default_request_ttl: str = msgspec.field(default="60s", name="defaultRequestTTL")
    no_endpoint_request_ttl: str = msgspec.field(default="", name="noEndpointRequestTTL")
    default_priority_band: PriorityBand = PriorityBand()
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: list[PriorityBand] = []
    usage_limit_policy_plugin_ref: str = "static-usage-limit-policy"
    saturation_detector: Reference | None = None
    enable_eviction: bool = False


class EndpointPickerConfig(_Part, frozen=True):
    """The whole file."""

    api_version: str
    kind: str
    feature_gates: list[str] = []
    plugins: list[Plugin] = []
    scheduling_profiles: list[Profile] = []
    data_layer: DataLayer = DataLayer()
    request_handler: RequestHandler = RequestHandler()
    parser: Reference | None = None
    saturation_detector: Reference | None = None
    flow_control: FlowControl = FlowControl()


def parse_picker_config(text: str | bytes, source: str) -> EndpointPickerConfig:
    """YAML or JSON text to a configuration whose references all lead to a plugin.

    Raises:
        ConfigError: not this kind of file; all unknown keys, all repeated or unknown names.
    """
    config = convert(_without_nulls(load_yaml(text, source) or {}), EndpointPickerConfig, source)
    if config.kind != KIND:
        raise ConfigError(source, "kind", f"{config.kind!r} is not {KIND}")
    if config.api_version not in API_VERSIONS:
        known = " or ".join(API_VERSIONS)
        raise ConfigError(source, "apiVersion", f"{config.api_version!r} is not known", known)
    errors = []
    names = [plugin.known_as for plugin in config.plugins]
    for position, name in enumerate(names):
        if name in names[:position]:
            problem = f"a second plugin named {name!r}"
            errors.append(ConfigError(source, f"plugins[{position}]", problem, "give it a name"))
    known = ", ".join(names) or "the file has none"
    errors += [
        ConfigError(source, key, f"no plugin is named {reference!r}", f"plugins: {known}")
        for key, reference in _references(msgspec.to_builtins(config), "")
        if reference not in names and reference not in _MADE
    ]
    raise_all(errors)
    return config


def _without_nulls(value: object) -> object:
    """Leave out keys without a value, as Go does; parameters stay as they are."""
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: part if name == "parameters" else _without_nulls(part)
        for name, part in value.items()
        if part is not None
    }


def _references(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every `pluginRef`, with its place."""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f"{key}.{name}".removeprefix("."), part) for name, part in value.items())
    elif isinstance(value, list):
        parts = ((f"{key}[{place}]", part) for place, part in enumerate(value))
    for inner, part in parts:
        if inner.endswith(".pluginRef") and part is not None:
            yield inner, str(part)
        elif not inner.endswith(".parameters"):
            yield from _references(part, inner)
