"""The configuration of `epp serve`: one frozen struct a section, every default and unit in its docstring.

Unknown keys are errors. Values are checked here when they can be wrong on their own; what needs a disk, a
socket or the pool is checked by whoever owns that.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from epp.config.kubernetes import Kubernetes  # noqa: TC001  # msgspec reads the annotation at run time
from epp.config.listen import Listen  # as above
from epp.config.relays import Relays
from epp.config.section import (
    HeaderName,
    NotNegative,
    Positive,
    PositiveInt,
    RequestPath,
    Section,
    Share,
)


class Pool(Section, frozen=True):
    """Where endpoints come from.

    Attributes:
        file: the endpoints file, watched; relative to the configuration file.
        kubernetes: a cluster to take endpoints from, instead of the file.
        warmup_s: seconds over which the share of a new or returned endpoint ramps from 0 to 1.
        eds_file: where the pool of `file` is written for Envoy, which follows it; `epp envoy render` tells
            Envoy this path, relative to the configuration file. Empty where Envoy does not read it: it
            shares no file system with the picker, or is of the `original-dst` variant.
    """

    file: str = "endpoints.yaml"
    kubernetes: Kubernetes | None = None
    warmup_s: NotNegative = 30.0
    eds_file: str = "eds.json"


class Saturation(Section, frozen=True):
    """When requests of negative priority are refused with 429. The numbers are llm-d's, source [E].

    Attributes:
        queue_requests: waiting requests per endpoint that count as saturated.
        kv_usage: share of the KV cache in use that counts as saturated.
    """

    queue_requests: Positive = 5.0
    kv_usage: Positive = 0.8


class PolicySection(Section, frozen=True):
    """Which policy prices endpoints, and with what.

    Attributes:
        name: a registered policy.
        params: constants of the policy, as docs/policies.md names them; unknown ones are errors.
        weights: starting weights; keys the policy does not know are errors.
        bounds: tighter ``[low, high]`` per weight; values from either shared file outside them are refused.
        tie_band: costs within this relative distance of the best count as equal and are drawn among.
        fallbacks: further endpoints sent after the picked one, in order of cost (0 for gateways that take
            a single endpoint).
        model_file: reward model of `lodestar`, as `epp learn` writes it, watched; none when empty.
    """

    name: str = "gorgo-ms"
    params: dict[str, bool | int | float | str | dict[str, float]] = {}
    weights: dict[str, float] = {}
    bounds: dict[str, tuple[float, float]] = {}
    tie_band: Share = 0.01
    fallbacks: Annotated[int, msgspec.Meta(ge=0, le=16)] = 2
    model_file: str = ""


class RegionRule(Section, frozen=True):
    """Requests that match every given field may only go to the regions allowed.

    Attributes:
        allow: region names.
        model: a shell-style pattern of the model name.
        path_prefix: start of the path.
        header: name of a request header, e.g. a tenant's.
        value: value that the header must have.
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
        max_body_bytes: longest body; more is answered with 413.
        max_held_body_bytes: what all waiting requests may hold together: incomplete bodies (in full duplex
            they come in pieces, as slowly as their clients send them), with their headers and metadata as
            they lie in memory. More is answered with 503. Each response that is read counts 64 KiB; on the
            picker's own transport, open streams (8 KiB each) and messages that are incomplete, queued or not
            yet read count, too. All but bodies may exceed the limit by the length of the longest message. At
            least `max_body_bytes`.
        tenant_header: header whose value separates cache namespaces, none when empty.
        inject_usage: ``always`` asks for the usage of streamed chat completions and completions whose clients
            do not; they then see one more chunk at the end, with empty ``choices`` and ``usage``. A client
            that says ``include_usage: false`` is obeyed.
    """

    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    max_held_body_bytes: PositiveInt = 1024 * 1024 * 1024
    tenant_header: HeaderName = ""
    inject_usage: Literal["never", "always"] = "never"

    def __post_init__(self) -> None:
        """A budget that the longest body alone exceeds would refuse it for ever."""
        if self.max_held_body_bytes < self.max_body_bytes:
            raise ValueError("max_held_body_bytes is below max_body_bytes")


class Protocol(Section, frozen=True):
    """The endpoint picker protocol (Gateway API inference extension, proposal 004).

    Attributes:
        subset_hint: obey the gateway's ``envoy.lb.subset_hint`` metadata.
        emit_scores: send the score of every priced endpoint as metadata; higher is better.
        errors: words of refusals: ``api`` for the API's own JSON, ``llm-d`` for its plain text.
        conformance: for the Gateway API conformance suite alone, never in production: clients choose the
            endpoint by a header, and answers tell who served.
    """

    subset_hint: bool = True
    emit_scores: bool = False
    errors: Literal["api", "llm-d"] = "api"
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
        tokenizer: ``auto`` takes each served model's own tokenizer where its files are on this machine (the
            folder that its engine serves, the Hugging Face cache), ``download`` also from the hub;
            ``estimate`` takes only those of ``models``.
        models: tokenizers by the public model name that requests give, before any that ``auto`` finds.
        budget_ms: longest wait for a count; after it the estimate is used.
    """

    tokenizer: Literal["auto", "download", "estimate"] = "auto"
    models: dict[str, ModelTokenizer] = {}
    budget_ms: Positive = 50.0


class Prefix(Section, frozen=True):
    """The prefix index.

    Attributes:
        secret_file: file whose bytes key all block hashes; a random key of the process when empty.
        block_bytes: bytes of canonical prompt per block.
        capacity_tokens: tokens believed to fit an endpoint's KV cache until the engine reports a size.
        state_slots: recurrent states that an engine of a hybrid model keeps, those of running requests
            included; with 0 every token of a prompt can be taken up again.
        chunk_tokens: most tokens of one prefill of such an engine: it copies a state at the end of each.
    """

    secret_file: str = ""
    block_bytes: Annotated[int, msgspec.Meta(ge=32, le=65536)] = 256
    capacity_tokens: PositiveInt = 500_000
    state_slots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    chunk_tokens: PositiveInt = 4096


class Scrape(Section, frozen=True):
    """Engine metrics.

    Attributes:
        interval_s: seconds between scrapes of one endpoint; 0 turns scraping off.
        path: path of the exposition.
        stale_after_s: age at which a value counts as unknown.
        ca_file: CA bundle for endpoints with TLS, the system's when empty.
        bearer_token_file: token sent with scrapes and probes, re-read when it changes.
    """

    interval_s: NotNegative = 1.0
    path: RequestPath = "/metrics"
    stale_after_s: Positive = 10.0
    ca_file: str = ""
    bearer_token_file: str = ""


class Probe(Section, frozen=True):
    """RTT and health probes over one warm connection per endpoint.

    Attributes:
        interval_s: seconds between probes of one endpoint; 0 turns probing off.
        timeout_s: longest wait for a probe's or a scrape's answer.
        path: path asked for; any HTTP answer below 500 counts as alive.
        eject_s: first ejection, after three failures in a row; doubles to ten times this.
    """

    interval_s: NotNegative = 2.0
    timeout_s: Positive = 2.0
    path: RequestPath = "/health"
    eject_s: Positive = 5.0


class CapabilitySection(Section, frozen=True):
    """Several models behind one public name, which answer differently well (docs/laar.md).

    Attributes:
        file: what is known of their answers, as `epp laar fit` writes it, watched; none when empty.
        tell_model: responses tell which model answered, by its engine's name for it, in
            ``x-epp-served-model``, and how many are left that are worth a try in
            ``x-epp-untried-models``. Render Envoy's configuration again after a change.
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
    Envoy's report tells all of it in a constant number of messages.

    Attributes:
        mode: ``all``, ``none``, or ``sample:`` and the share that is read, as in ``sample:0.1``, drawn by
            decision id. ``observe: sample:0.1`` is short for a section with this key alone.
        max_chunks_per_s: above so many pieces read a second the share falls by itself, and says so; 0 for no
            limit. In full duplex answers that this leaves unread pass through, whatever `unobserved` says.
        unobserved: what becomes of the others. ``end``: the stream ends with the pick, in one message, and
            leases end when that is to be expected. ``carry``: they pass through unread, for proxies that
            do not know CONTINUE_AND_REPLACE in full duplex (docs/transport.md).
    """

    mode: ObserveMode = "all"
    max_chunks_per_s: NotNegative = 4000.0
    unobserved: Literal["end", "carry"] = "end"


class Records(Section, frozen=True):
    """The flight recorder.

    Attributes:
        folder: where decisions and outcomes are written, nowhere when empty. Pickers may share one.
        max_bytes: size of all files of the folder together; the oldest go first.
        compress: ``none``, or ``zstd`` (needs ``pip install 'gorgo-epp[zstd]'``).
        sample: share of the requests that is recorded, drawn by decision id.
    """

    folder: str = ""
    max_bytes: PositiveInt = 1024 * 1024 * 1024
    compress: Literal["none", "zstd"] = "none"
    sample: Share = 1.0


class Config(Section, frozen=True):
    """All of `epp.yaml`.

    Attributes:
        weights_file: weights written by the tuner, watched; none when empty.
        overrides_file: weights pinned by the operator, watched; they win. None when empty.
        regions: rules that bind requests to regions; all that match apply.
        observe: which responses passing the picker are read: ``all``, ``none``, ``sample:`` and a share, or
            a section.
        shadow: policies that score live decisions without a say in them (docs/lodestar.md).
        drain_s: seconds that streams may go on after SIGTERM (or SIGINT, or SIGHUP unless it is ignored).
        drain_accept_s: how many of them new streams are still taken, because proxies learn late that the
            picker is leaving.
    """

    listen: Listen = Listen()
    pool: Pool = Pool()
    policy: PolicySection = PolicySection()
    weights_file: str = ""
    overrides_file: str = ""
    regions: list[RegionRule] = []
    relays: Relays = Relays()
    request: Request = Request()
    protocol: Protocol = Protocol()
    tokens: Tokens = Tokens()
    prefix: Prefix = Prefix()
    capability: CapabilitySection = CapabilitySection()
    scrape: Scrape = Scrape()
    probe: Probe = Probe()
    observe: ObserveSection | ObserveMode = ObserveSection()
    records: Records = Records()
    saturation: Saturation = Saturation()
    shadow: list[str] = []
    drain_s: NotNegative = 30.0
    drain_accept_s: NotNegative = 0.0
