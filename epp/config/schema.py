"""The configuration of `epp serve`: one frozen struct a section, every default and unit in its docstring.

Unknown keys are errors. Values are checked here when they can be wrong on their own; what needs a disk, a
socket or the pool is checked by whoever owns that.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from epp.config.federation import MAX_REGIONS, Federation
from epp.config.kubernetes import Kubernetes  # noqa: TC001  # msgspec reads the annotation at run time
from epp.config.listen import Listen  # as above
from epp.config.relays import Relays
from epp.config.section import (
    MAX_MODEL_WAIT_S,
    MOST,
    HeaderName,
    KvUrl,
    MetricsPath,
    NotNegative,
    Positive,
    PositiveInt,
    RequestPath,
    Section,
    Share,
)
from epp.types import KV_BYTES_PER_TOKEN, LINK_GBPS

#: Characters that need no quotes in Envoy's configuration, nor in the chart's.
OpenPath = Annotated[
    str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._~/-]*$", extra={"fix": "a path without query, e.g. /metrics"})
]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class Pool(Section, frozen=True):
    """Where endpoints come from.

    Attributes:
        file: the endpoints file, watched; relative to the configuration file.
        kubernetes: a cluster to take endpoints from, instead of the file.
        warmup_s: seconds in which the share of a new endpoint rises from 0 to 1.
        eds_file: where the pool of `file` is written for Envoy, which follows it; empty where they
            share no file system, or Envoy is of the `original-dst` variant.
    """

    file: str = "endpoints.yaml"
    kubernetes: Kubernetes | None = None
    warmup_s: NotNegative = 30.0
    eds_file: str = "eds.json"


class Nats(Section, frozen=True):
    """What several pickers of one pool share, over NATS.

    Attributes:
        url: servers by commas, ``nats://user:password@host:4222`` or ``tls://``, the password without
            escapes; empty for a picker alone.
        name: the pool's name, by which pickers share; empty for the InferencePool's, else
            ``default``.
        credentials_file: user credentials as `nsc` writes them, or the seed of an nkey.
        ca_file: who signs the servers' certificates, the system's authorities when empty.
        lead: one picker's tuner and learner work for all; ``false`` where pickers share the records'
            folder.
    """

    url: str = ""
    name: str = ""
    credentials_file: str = ""
    ca_file: str = ""
    lead: bool = True


class Saturation(Section, frozen=True):
    """When requests of negative priority are refused with 429. The numbers are llm-d's, source [E].

    Attributes:
        queue_requests: waiting requests per endpoint that count as saturated.
        kv_usage: share of the KV cache in use that counts as saturated.
        stale_after_s: age of metrics from which their endpoint counts as saturated; 0 for the
            scrape's.
        running_requests: unfinished requests per endpoint that count as saturated, instead of its
            metrics; 0 to go by metrics.
        pending_tokens: uncached tokens per endpoint that await their first token, likewise.
        largest: requests and tokens do not replace queues and KV caches: the larger of both measures counts.
    """

    queue_requests: Positive = 5.0
    kv_usage: Positive = 0.8
    stale_after_s: NotNegative = 0.0
    running_requests: NotNegative = 0.0
    pending_tokens: NotNegative = 0.0
    largest: bool = False


class BandSettings(Section, frozen=True):
    """How the requests of one priority wait.

    Attributes:
        fairness: which flow of a priority is next: the one served least while others waited
            (`tokens`), or served least lately, with a first request that waits long
            (`program-aware`); the one with most turns (`turn-priority`); each in turn by name
            (`round-robin`); all as one flow (`global-strict`).
        las_weight_service: weight of the service in `program-aware`.
        las_weight_head_wait: weight of the wait.
        half_life_s: time after which half of what was served counts; 0 for never.
        turn_wait_weight: turns that a second of wait is worth in `turn-priority`.
        turn_idle_s: time without a request after which turns count from one again; 0 for never.
        ordering: of a flow's requests: by `x-llm-d-slo-ttft-ms`, then by arrival (`slo-deadline`); by
            arrival, without deadlines (`fcfs`); `edf` is llm-d's word for the same.
        ttl_s: longest wait, before 429.
        max_requests: requests of the priority that may wait, before 429.
        max_bytes: bytes of their bodies, likewise.
    """

    fairness: Literal["tokens", "program-aware", "turn-priority", "round-robin", "global-strict"] = "tokens"
    las_weight_service: NotNegative = 0.8
    las_weight_head_wait: NotNegative = 0.2
    half_life_s: NotNegative = 60.0
    turn_wait_weight: NotNegative = 0.05
    turn_idle_s: NotNegative = 120.0
    ordering: Literal["slo-deadline", "fcfs", "edf"] = "slo-deadline"
    ttl_s: Positive = 30.0
    max_requests: PositiveInt = 5000
    max_bytes: PositiveInt = 1_000_000_000


class QueueBand(BandSettings, frozen=True, kw_only=True):
    """A priority that waits by settings of its own.

    Attributes:
        priority: which one.
    """

    priority: int


class Limits(Section, frozen=True):
    """A priority is served while the pool's saturation (`saturation`) is below its limit. Source [E].

    Attributes:
        policy: one limit for all (`static-usage-limit`), lower ones for lower priorities
            (`priority-holdback`), or 1 for the highest priority, and fewer looks at the lower ones
            the fuller the pool is (`soft-reflective-ceiling`).
        threshold: the static limit.
        min_ceiling: limit of the lowest priority, of 0, those that `bands` name and those that came.
        max_ceiling: limit of the highest.
        domain: limits of those between: by `rank` in equal steps, or by the priority's `value`.
    """

    policy: Literal["static-usage-limit", "priority-holdback", "soft-reflective-ceiling"] = (
        "static-usage-limit"
    )
    threshold: NotNegative = 1.0
    min_ceiling: Share = 0.0
    max_ceiling: Share = 1.0
    domain: Literal["rank", "value"] = "rank"


class ProgramsSection(Section, frozen=True):
    """Turns of agents wait until the agent's whole context has a place in a KV cache.

    Attributes:
        enabled: hold turns; `queue.enabled` is needed, and clients that wait as long as `longest_hold_s`.
        quantum_s: time for which an agent keeps its place although others wait
            (docs/queue.md#agents).
        age_s: wait from which a turn takes the place of agents that ran for a quantum.
        longest_hold_s: wait after which a turn goes without a place. Where it does not exceed `age_s` no turn
            is held: that gains nothing.
    """

    enabled: bool = False
    quantum_s: Positive = 300.0
    age_s: NotNegative = 120.0
    longest_hold_s: Positive = 540.0

    @property
    def holds(self) -> bool:
        """Whether turns are held."""
        return self.enabled and self.longest_hold_s > self.age_s


class QueueSection(BandSettings, frozen=True):
    """Requests that find no room wait in the picker until they can be sent.

    Attributes:
        enabled: let requests wait; Envoy must grant the time.
        full_duplex: also in full duplex, where those that wait get 503 if the picker dies.
        patience: seconds that a request waits for the engine that serves it best, for each second of
            prefill saved there (docs/queue.md).
        empty_ttl_s: longest wait while the pool has no endpoint; 0 for `ttl_s`.
        total_requests: requests of all priorities that may wait.
        total_bytes: bytes of their bodies.
        bands: priorities that wait by settings of their own; a key left out has its default.
        negative: the same for other priorities below zero.
        limits: decides by the pool when there is room, not by each engine.
        priorities: numbers of the InferenceObjectives that requests name, outside of Kubernetes.
        programs: agents whose turns wait for a place of their contexts.
    """

    enabled: bool = False
    full_duplex: bool = False
    patience: NotNegative = 4.0
    empty_ttl_s: NotNegative = 0.0
    total_requests: Positive = MOST
    total_bytes: Positive = MOST
    bands: list[QueueBand] = []
    negative: BandSettings | None = None
    limits: Limits | None = None
    priorities: dict[str, int] = {}
    programs: ProgramsSection = ProgramsSection()

    def __post_init__(self) -> None:
        """Turns of agents are held in the queue."""
        if self.programs.enabled and not self.enabled:
            raise ValueError("queue.programs.enabled needs queue.enabled: true")

    def of(self, priority: int) -> BandSettings:
        """Return the settings of a priority."""
        named = (band for band in self.bands if band.priority == priority)
        return next(named, (priority < 0 and self.negative) or self)

    @property
    def longest_s(self) -> float:
        """How long any request may wait."""
        bands = [self, *self.bands, self.negative or self]
        held_s = self.programs.longest_hold_s if self.programs.holds else 0.0
        return max(held_s, self.empty_ttl_s, *(band.ttl_s for band in bands))


class PolicySection(Section, frozen=True):
    """Which policy prices endpoints, and with what.

    Attributes:
        name: a registered policy.
        params: constants of the policy (docs/policies.md).
        weights: starting weights.
        bounds: tighter ``[low, high]`` per weight, for both weights files.
        tolerance: relative distance from the best cost within which costs count as equal and are
            drawn among.
        fallbacks: further endpoints sent after the chosen one, by cost; 0 for gateways that take one.
            Where endpoints list models, or a rule binds, all that may serve follow, up to 31.
        model_file: reward model of `lodestar`, written by `epp learn`, watched.
    """

    name: str = "gorgo-ms"
    params: dict[str, Any] = {}
    weights: dict[str, float] = {}
    bounds: dict[str, tuple[float, float]] = {}
    tolerance: Share = 0.01
    fallbacks: Annotated[int, msgspec.Meta(ge=0, le=16)] = 2
    model_file: str = ""


class RegionRule(Section, frozen=True):
    """Requests that match every given field may only go to the regions allowed.

    Attributes:
        allow: region names.
        model: shell-style pattern of the model name.
        path_prefix: start of the path.
        header: a request header, e.g. a tenant's.
        value: its value.
    """

    allow: Annotated[list[str], msgspec.Meta(min_length=1)]
    model: str = ""
    path_prefix: str = ""
    header: HeaderName = ""
    value: str = ""

    def __post_init__(self) -> None:
        """A rule must match on something, and a header only together with its value."""
        if not (self.model or self.path_prefix or self.header):
            raise ValueError("a region rule needs model, path_prefix or header")
        if bool(self.header) != bool(self.value):
            raise ValueError("header and value of a region rule go together")


class Request(Section, frozen=True):
    """How requests are read.

    Attributes:
        max_body_bytes: longest body, before 413.
        max_held_body_bytes: memory of waiting requests together, before 503: incomplete bodies,
            headers, open streams (8 KiB each) and responses being read (64 KiB each). At most a
            quarter of the process's memory limit.
        tenant_header: header whose value separates cache namespaces.
        inject_usage: ``always`` asks engines for the usage of streams whose clients do not ask,
            unless they say ``include_usage: false``; clients see one more chunk.
        open_paths: further paths that clients may ask engines for, such as ``/metrics``
            (docs/apis.md); a ``/`` at the end opens all below. Render Envoy again.
        tell_endpoint: answers name who served them in ``x-epp-endpoint``, refusals their rule in
            ``x-epp-refusal``. Render Envoy again.
        model_wait_s: longest wait for a model that no engine is known to serve, while engines are
            asked. Above 0.1 Envoy needs ``max_message_timeout``, as rendered.
    """

    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    max_held_body_bytes: PositiveInt = 1024 * 1024 * 1024
    tenant_header: HeaderName = ""
    inject_usage: Literal["never", "always"] = "never"
    open_paths: list[OpenPath] = []
    tell_endpoint: bool = False
    model_wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_MODEL_WAIT_S)] = 3.0

    def __post_init__(self) -> None:
        """A budget that the longest body alone exceeds would refuse it for ever."""
        if self.max_held_body_bytes < self.max_body_bytes:
            raise ValueError("max_held_body_bytes is below max_body_bytes")


class Protocol(Section, frozen=True):
    """The endpoint picker protocol (Gateway API inference extension, proposal 004).

    Attributes:
        subset_hint: obey the gateway's ``envoy.lb.subset_hint`` metadata.
        emit_scores: send every priced endpoint's score as metadata; higher is better.
        errors: form of refusals: the API's own JSON (``api``) or ``llm-d``'s plain text.
        old_metric_names: show llm-d's metrics also by the names and labels that they had before
            (``inference_objective_*``, ``inference_pool_*``, ``inference_extension_*``).
        conformance: for the Gateway API's conformance suite alone: clients choose the endpoint.
    """

    subset_hint: bool = True
    emit_scores: bool = False
    errors: Literal["api", "llm-d"] = "api"
    old_metric_names: bool = False
    conformance: bool = False


class ModelTokenizer(Section, frozen=True):
    """One model's own tokenizer (needs ``pip install 'gorgo-epp[tokenizers]'``).

    Attributes:
        source: folder with ``tokenizer.json``, relative to the configuration file, or a hub id.
        revision: branch, tag or commit on the hub, the default one when empty.
        chat_template: file with a Jinja template; the model's own when empty; ``none`` for a model that takes
            no chats.
    """

    source: Annotated[str, msgspec.Meta(min_length=1)]
    revision: str = ""
    chat_template: str = ""


class Tokens(Section, frozen=True):
    """Token counting.

    Attributes:
        tokenizer: ``auto`` takes served models' tokenizers whose files are here, ``download`` also
            the hub's, ``estimate`` only those of ``models``.
        models: by public model name, ``{source: folder or hub id, revision, chat_template}``.
        budget_ms: longest wait for a count; then it is estimated.
    """

    tokenizer: Literal["auto", "download", "estimate"] = "auto"
    models: dict[str, ModelTokenizer] = {}
    budget_ms: Positive = 50.0


class Prefix(Section, frozen=True):
    """The prefix index.

    Attributes:
        secret_file: its bytes key all block hashes, and sign what pickers tell each other; a random
            key when empty.
        second_secret_file: what other pickers may have instead (docs/cluster.md#change-the-secret).
        block_bytes: bytes of canonical prompt per block.
        capacity_tokens: size of an endpoint's KV cache until the engine reports it.
        capacity_stated: keep that, whatever the engine reports.
        state_slots: recurrent states that an engine of a hybrid model keeps; 0 for other models.
        chunk_tokens: longest prefill of such an engine at once.
    """

    secret_file: str = ""
    second_secret_file: str = ""
    block_bytes: Annotated[int, msgspec.Meta(ge=32, le=65536)] = 256
    capacity_tokens: PositiveInt = 500_000
    capacity_stated: bool = False
    state_slots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    chunk_tokens: PositiveInt = 4096


class KvEvents(Section, frozen=True):
    """What engines publish of their KV caches (needs ``pip install 'gorgo-epp[kv-events]'``).

    Attributes:
        enabled: listen to them.
        address: where each engine publishes, such as ``tcp://{host}:5557``; an endpoint's own
            ``kv_events`` goes first.
        replay_address: where engines send again what was missed, such as ``tcp://{host}:5657``.
        listen: address of a socket to which engines connect, such as ``tcp://*:5557``; their topics are
            ``kv@``, the endpoint's address, ``@`` and anything.
        topics: beginnings of the topics to listen to, any when empty.
        ranks: data-parallel ranks behind each endpoint that states no `ranks` itself, each at the port after
            the one before; the ports of the two addresses lie at least so far apart.
        cpu_price: worth of a token in the host's memory, as a share of one on the accelerator.
        disk_price: worth of one on a disk or further away.
        max_blocks: blocks of all endpoints, 300 bytes each.
    """

    enabled: bool = False
    address: KvUrl = ""
    replay_address: KvUrl = ""
    listen: KvUrl = ""
    topics: list[str] = []
    ranks: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    cpu_price: Share = 0.8
    disk_price: Share = 0.5
    max_blocks: PositiveInt = 1_000_000

    def __post_init__(self) -> None:
        """No rank publishes where another sends again."""
        host, _, port = self.address.rpartition(":")
        replay_host, _, replay_port = self.replay_address.rpartition(":")
        if host and host == replay_host and abs(int(port) - int(replay_port)) < self.ranks:
            raise ValueError(f"ports of address and replay_address are less than ranks ({self.ranks}) apart")


class Scrape(Section, frozen=True):
    """Engine metrics.

    Attributes:
        interval_s: seconds between scrapes of one endpoint; 0 turns scraping off.
        path: of the exposition; when empty, ``/metrics``, ``/prometheus/metrics`` and ``/v1/metrics``
            are tried. An endpoint's ``metrics_path`` goes first.
        stale_after_s: age at which a value counts as unknown.
        ca_file: CA bundle for endpoints with TLS, the system's when empty; also rendered for Envoy.
        insecure: accept any certificate of endpoints with TLS. Render Envoy again.
        bearer_token_file: token of scrapes and probes, watched.
        gpu_port: port of DCGM Exporter beside each endpoint; 0 for none.
    """

    interval_s: NotNegative = 1.0
    path: MetricsPath = ""
    stale_after_s: Positive = 10.0
    ca_file: str = ""
    insecure: bool = False
    bearer_token_file: str = ""
    gpu_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class Probe(Section, frozen=True):
    """RTT and health probes over one open connection per endpoint.

    Attributes:
        interval_s: seconds between probes of one endpoint; 0 turns probing off. Endpoints that
            answered within three of them go before others.
        timeout_s: longest wait for a probe's or a scrape's answer.
        path: path of probes; an answer below 500 counts as alive.
        eject_s: first ejection, after three failures in a row; doubles to ten times this.
    """

    interval_s: NotNegative = 2.0
    timeout_s: Positive = 2.0
    path: RequestPath = "/health"
    eject_s: Positive = 5.0


class CapabilitySection(Section, frozen=True):
    """Several models behind one public name, which answer differently well (docs/laar.md).

    Attributes:
        file: what is known of their answers, written by `epp capability fit`, watched.
        tell_model: answers carry ``x-epp-served-model``, and in ``x-epp-untried-models`` how many are
            left to try. Render Envoy again.
    """

    file: str = ""
    tell_model: bool = False


ObserveMode = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(all|none|sample:(0|1|0?\.[0-9]+|0\.[0-9]+|1\.0+))$",
        extra={"fix": "all, none, or sample: and a share from 0 to 1, e.g. sample:0.1"},
    ),
]


class ObserveSection(Section, frozen=True):
    """Which responses are read, of those that a gateway shows the picker (STREAMED and full duplex).

    Where responses do not pass through the picker, as in our own Envoy configuration, nothing here matters:
    Envoy reports each request in a constant number of messages.

    Attributes:
        mode: ``all``, ``none``, or ``sample:`` and a share; ``observe: sample:0.1`` is short for it.
        max_chunks_per_s: pieces a second above which the share falls by itself; 0 for no limit.
        unobserved: ``end`` ends other streams after their decision; ``carry`` passes them through,
            for proxies without CONTINUE_AND_REPLACE in full duplex (docs/transport.md).
    """

    mode: ObserveMode = "all"
    max_chunks_per_s: NotNegative = 4000.0
    unobserved: Literal["end", "carry"] = "end"


class Records(Section, frozen=True):
    """The flight recorder.

    Attributes:
        folder: where decisions and outcomes are written; pickers may share one (docs/records.md).
        max_bytes: size of all files together; the oldest go first.
        compress: ``none``, or ``zstd`` (needs ``pip install 'gorgo-epp[zstd]'``).
        sample: share of the requests that is recorded.
    """

    folder: str = ""
    max_bytes: PositiveInt = 1024 * 1024 * 1024
    compress: Literal["none", "zstd"] = "none"
    sample: Share = 1.0


class Transfer(Section, frozen=True):
    """KV caches between endpoints that prefill and that decode, until engines tell how long transfers take.

    Attributes:
        kv_bytes_per_token: size of a token's KV cache; the default is of Llama 3.1 8B in bf16.
        link_gbps: speed of an endpoint's link.
    """

    kv_bytes_per_token: Positive = KV_BYTES_PER_TOKEN
    link_gbps: Positive = LINK_GBPS


class Config(Section, frozen=True):
    """All of `epp.yaml`.

    Attributes:
        weights_file: weights written by the tuner, watched.
        overrides_file: weights pinned by the operator, watched; they win.
        regions: rules that bind requests to regions; all that match apply.
        observe: which responses that pass the picker are read: the section, or its `mode` alone.
        shadow: policies that score live decisions without a say (docs/lodestar.md).
        tracing: export spans over OTLP, by the environment's ``OTEL_*`` (needs ``pip install
            'gorgo-epp[otel]'``).
        drain_s: seconds that streams may go on after SIGTERM.
        drain_accept_s: seconds of these in which new streams are taken.
    """

    listen: Listen = Listen()
    pool: Pool = Pool()
    nats: Nats = Nats()
    policy: PolicySection = PolicySection()
    weights_file: str = ""
    overrides_file: str = ""
    regions: list[RegionRule] = []
    relays: Relays = Relays()
    federation: Federation = Federation()
    request: Request = Request()
    protocol: Protocol = Protocol()
    tokens: Tokens = Tokens()
    prefix: Prefix = Prefix()
    kv_events: KvEvents = KvEvents()
    capability: CapabilitySection = CapabilitySection()
    scrape: Scrape = Scrape()
    probe: Probe = Probe()
    observe: ObserveSection | ObserveMode = ObserveSection()
    records: Records = Records()
    saturation: Saturation = Saturation()
    queue: QueueSection = QueueSection()
    transfer: Transfer = Transfer()
    shadow: list[str] = []
    tracing: bool = False
    drain_s: NotNegative = 30.0
    drain_accept_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        """Pickers that share hash alike."""
        if self.nats.url and not self.prefix.secret_file:
            raise ValueError("nats.url needs prefix.secret_file, the same bytes for every picker")
        if self.federation.region:
            self._check_federation()

    def _check_federation(self) -> None:
        own, relays = self.federation.region, self.relays.regions
        wrong = [
            f"relays.regions: {name!r} is no name of a host, which certificates need"
            for name in relays
            if not _HOST.fullmatch(name)
        ]
        wrong += [
            f"federation.region: {own!r} is not in relays.regions" if own not in relays else "",
            "" if len(relays) <= MAX_REGIONS else f"relays.regions: more than {MAX_REGIONS} regions",
            "" if self.federation.key_file else "federation.key_file is needed: it signs forwarded requests",
            "" if self.nats.url else "nats.url is needed: regions tell each other their load over NATS",
        ]
        if any(wrong):
            raise ValueError("\n".join(filter(None, wrong)))
