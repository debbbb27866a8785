"""The endpoints file: what an operator writes about each replica."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Annotated

import msgspec

from epp.config.address import normalise_address
from epp.config.section import BasePath, KvUrl, MetricsPath, Section
from epp.config.strict import salvage
from epp.errors import ConfigError, gather, raise_all
from epp.types import MAX_MODEL_CHARS, MAX_RTT_MS, Endpoint, Role, ranked

#: Longest round trip that may be stated.
MOST_RTT_MS = MAX_RTT_MS
#: Most tokens that may be stated; what is larger by far fits no column of numbers.
MOST_TOKENS = 1_000_000_000_000

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
Rtt = Annotated[float, msgspec.Meta(ge=0, le=MOST_RTT_MS)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=256)]


#: Labels that say what an endpoint does; the first that it has counts. Source [E].
ROLE_LABELS = ("llm-d.ai/role", "disaggregatedset.x-k8s.io/role")
_ROLES = {role.value: role for role in (Role.ENCODE, Role.PREFILL, Role.DECODE)}
RoleName = Annotated[
    str, msgspec.Meta(pattern="^(|both|(encode|prefill|decode)(-(encode|prefill|decode))*)$")
]


def roles_of(name: str) -> frozenset[Role]:
    """Return the parts of requests that a role's name says; none for a name that says nothing of them."""
    parts = ("prefill-decode" if name == "both" else name).split("-")
    return frozenset(_ROLES[part] for part in parts) if _ROLES.keys() >= set(parts) else frozenset()


class EndpointSpec(Section, frozen=True, omit_defaults=True):
    """One replica.

    Attributes:
        address: ``host:port``, IPv6 in brackets; the host alone beside ``port``, as in llm-d's files.
        base_path: what stands before its paths, such as ``/llm`` for ``/llm/v1``. Render Envoy again.
        tls: whether it speaks TLS.
        server_name: SNI and certificate name, the host itself when empty.
        region: its region, free text.
        engine_class: its hardware and engine class, free text.
        models: public model names that it serves, any when empty; a mapping where its engine has
            other names (docs/models.md).
        adapters: LoRA adapters of its base model, written like ``models``.
        context_tokens: longest prompt plus output.
        kv_capacity_tokens: its KV cache, where the engine does not report it.
        rtt_ms: assumed until measured.
        draining: takes no new requests.
        metrics_path: instead of ``path`` in ``scrape``.
        bearer_token_file: instead of the one in ``scrape``.
        ca_file: instead of the one in ``scrape``.
        uid: the process behind the address; a new one has an empty cache.
        labels: free; ``llm-d.ai/role`` or ``disaggregatedset.x-k8s.io/role`` says the role.
        role: ``prefill``, ``decode``, ``encode``, several joined by ``-``, or ``both`` for
            ``prefill-decode``; whole requests when empty. Goes before labels.
        ranks: data-parallel ranks behind its port, each an endpoint that requests name by header.
        kv_events: where its engine publishes its KV cache, such as ``tcp://10.0.0.1:5557``; goes
            before ``address`` in ``kv_events``.
        kv_replay: where it sends that again; goes before ``replay_address``.
        port: see ``address``.
        name: for people.
        namespace: for people.
    """

    address: str
    base_path: BasePath = ""
    tls: bool = False
    server_name: str = ""
    region: str = ""
    engine_class: str = ""
    models: list[str] | dict[str, str] = []
    adapters: list[str] | dict[str, str] = []
    context_tokens: Tokens | None = None
    kv_capacity_tokens: Tokens | None = None
    rtt_ms: Rtt | None = None
    draining: bool = False
    metrics_path: MetricsPath = ""
    bearer_token_file: str = ""
    ca_file: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    role: RoleName = ""
    ranks: Ranks = 1
    kv_events: KvUrl = ""
    kv_replay: KvUrl = ""
    port: int | str = ""
    name: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        """Join host and port."""
        if self.port:
            msgspec.structs.force_setattr(self, "address", f"{self.address}:{self.port}")
            msgspec.structs.force_setattr(self, "port", "")

    def endpoint(self) -> Endpoint:
        """The part that signals and policies see."""
        models, adapters = _named(self.models), _named(self.adapters)
        return Endpoint(
            address=normalise_address(self.address),
            base_path=self.base_path,
            tls=self.tls,
            server_name=self.server_name,
            region=self.region,
            engine_class=self.engine_class,
            models=frozenset({**models, **adapters}),
            served_names={name: own for name, own in {**models, **adapters}.items() if own != name},
            adapters=frozenset(adapters),
            context_tokens=self.context_tokens,
            kv_capacity_tokens=self.kv_capacity_tokens,
            draining=self.draining,
            uid=self.uid,
            labels=self.labels,
            roles=roles_of(self.role or next((self.labels[k] for k in ROLE_LABELS if k in self.labels), "")),
            kv_events=self.kv_events,
            kv_replay=self.kv_replay,
        )

    def endpoints(self) -> list[Endpoint]:
        """List its ranks, which signals and policies see as endpoints."""
        whole = self.endpoint()
        return [replace(whole, address=name) for name in ranked(whole.address, self.ranks)]


class PoolFile(Section, frozen=True):
    """The whole endpoints file.

    Attributes:
        endpoints: one entry per replica; an explicit empty list is an empty pool.
    """

    endpoints: list[EndpointSpec]


def parse_pool(text: str | bytes | None, source: str) -> dict[str, EndpointSpec]:
    """Endpoints by canonical address, in file order; an explicit empty list is an empty pool.

    Args:
        text: content of the file, None when it is not there.
        source: its name, for errors.

    Raises:
        ConfigError: missing, unknown key, bad or repeated address; also an empty file, which is what a
            writer that was cut off leaves behind.
    """
    if text is None:
        raise ConfigError(source, "", "the file is missing", "deploy/endpoints.example.yaml is one")
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "write 'endpoints: []' for an empty pool")
    found = salvage(text, PoolFile, source)
    errors = found.errors
    specs: dict[str, EndpointSpec] = {}
    endpoints = found.value.endpoints if found.value is not None else []
    positions = (place for place in count() if f"endpoints[{place}]" not in found.left_out)
    for position, spec in zip(positions, endpoints, strict=False):
        with gather(errors):
            _check(spec, source, f"endpoints[{position}]", specs)
    raise_all(errors)
    return specs


def _check(spec: EndpointSpec, source: str, place: str, specs: dict[str, EndpointSpec]) -> None:
    """Add an endpoint to those before it.

    Raises:
        ConfigError: its address or its models cannot be used.
    """
    key = f"{place}.address"
    try:
        address = normalise_address(spec.address)
    except ValueError as error:
        raise ConfigError(source, key, str(error)) from error
    if address.endswith(":0"):
        raise ConfigError(source, key, "port 0 is not a place to send requests to")
    if address in specs:
        raise ConfigError(source, key, f"{address} is listed twice", "one entry per address")
    if wrong := misnamed(spec.models, spec.adapters):
        key, problem, fix = wrong
        raise ConfigError(source, f"{place}.{key}", problem, fix)
    specs[address] = spec


def _named(names: list[str] | dict[str, str]) -> dict[str, str]:
    """Public name -> engine's name."""
    return names if isinstance(names, dict) else {name: name for name in names}


def misnamed(
    models: list[str] | dict[str, str], adapters: list[str] | dict[str, str]
) -> tuple[str, str, str] | None:
    """The first thing that is wrong with an endpoint's names: key, problem and fix; None where nothing is."""
    base, own = _named(models), _named(adapters)
    for key, given, named in (("models", models, base), ("adapters", adapters, own)):
        for name in (*given, *named.values()):
            if not name or len(name) > MAX_MODEL_CHARS or not name.isprintable():
                fix = f"1 to {MAX_MODEL_CHARS} printable characters"
                return key, f"{name[:40]!r} is not a model's name", fix
        if len(named) != len(given):
            return key, "a name is listed twice", "one entry per model"
    if own and not base:
        problem = "without 'models' every name is served, adapters or not"
        return "adapters", problem, "name the base model under 'models'"
    if both := base.keys() & own.keys():
        return "adapters", f"{min(both)!r} is under 'models', too", "an adapter has a public name of its own"
    if both := set(base.values()) & set(own.values()):
        fix = "a second name of the base belongs under 'models'"
        return "adapters", f"the engine's {min(both)!r} is the base model", fix
    return None


def dump_pool(specs: list[EndpointSpec]) -> bytes:
    """The file for these endpoints, defaults left out."""
    return msgspec.yaml.encode(PoolFile(endpoints=specs))
