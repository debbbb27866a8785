"""What checks look at and what they say. Pure: `epp.ops.doctor.fetch` fills the context."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from epp.errors import UnreadableError
from epp.types import ranked
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.ops.doctor.envoy_dump import Envoy

ENOUGH = 100
"""Requests below which shares say nothing."""


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0  # what was looked at, or could not be
    ADVICE = 1  # works, and could be better
    WARNING = 2  # something is worse than it has to be
    ERROR = 3  # requests fail, or the picker does not decide what it is thought to


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was seen.

    Attributes:
        severity: how bad.
        what: what was seen, one sentence.
        why: what it costs; empty in a note.
        fix: what to do; empty in a note.
    """

    severity: Severity
    what: str
    why: str = ""
    fix: str = ""


Findings: TypeAlias = "Iterator[Finding]"
note = partial(Finding, Severity.NOTE)
advice = partial(Finding, Severity.ADVICE)
warning = partial(Finding, Severity.WARNING)
error = partial(Finding, Severity.ERROR)


class NotFetchedError(Exception):
    """A check lacks what it looks at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP status, 0 when there was no answer.
        body: the body, the reason when there was no answer.
        skew_s: the server's clock less ours, by its ``Date`` header; None without one.
        skew_error_s: how far that may be off: half of the round trip, and the header's whole second.
    """

    status: int
    body: bytes
    skew_s: float | None = None
    skew_error_s: float = 0.0

    @property
    def text(self) -> str:
        """Decode the body."""
        return self.body.decode(errors="replace")

    @property
    def problem(self) -> str:
        """Say why this is not the answer that was wanted."""
        return f"status {self.status}" if self.status else self.text

    def json(self) -> Any:
        """Decode the body, to None when it is not JSON."""
        try:
            return read(msgspec.json.Decoder(), self.body)
        except UnreadableError:
            return None


@dataclass(frozen=True, slots=True)
class Engine:
    """What an endpoint answered.

    Attributes:
        address: as the pool has it.
        spec: its entry in the pool.
        metrics: its metrics page.
        listed: models that it lists, none when it does not say.
        chats: answers to one prompt sent twice; fewer after a failure, none when nothing was to be sent.
    """

    address: str
    spec: EndpointSpec
    metrics: Answer
    listed: tuple[str, ...] = ()
    chats: tuple[Answer, ...] = ()

    @property
    def model(self) -> str | None:
        """Name a model that it should serve."""
        if self.spec.models:
            return self.spec.endpoint().served_name(next(iter(self.spec.models)))
        return self.listed[0] if self.listed else None


_Labels = dict[str, str]


class Page:
    """A metrics page by name; of several workers the sums of counters and the highest gauges.

    Raises:
        ValueError: it is no exposition.
    """

    def __init__(self, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  # 2 MB

        series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found = series.setdefault(sample.name, {})
                labels = frozenset(sample.labels.items() - {("worker", sample.labels.get("worker", ""))})
                if family.type == "gauge":
                    found[labels] = max(found.get(labels, -math.inf), sample.value)
                else:
                    found[labels] = found.get(labels, 0.0) + sample.value
        self._samples: dict[str, list[tuple[_Labels, float]]] = {
            name: [(dict(labels), value) for labels, value in found.items()] for name, found in series.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._samples

    def by(self, name: str, label: str, /, **labels: str) -> dict[str, float]:
        """Sum the series with these labels by a further one."""
        sums: dict[str, float] = {}
        for found, value in self._samples.get(name, ()):
            if labels.items() <= found.items():
                key = found.get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def total(self, name: str, /, **labels: str) -> float:
        """Sum the series with these labels, 0 when there is none."""
        return sum(self.by(name, "", **labels).values())

    @property
    def decisions(self) -> float:
        """Count decisions, 0 while they are too few for shares."""
        count = self.total("epp_decisions_total")
        return count if count >= ENOUGH else 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """How a destination is reached.

    Attributes:
        way: next hop and interface, as ``ip route`` takes them.
        initcwnd: initial congestion window in segments, 0 for the kernel's own 10 (RFC 6928).
        congestion: congestion control of this route, ``""`` for the default.
    """

    way: str
    initcwnd: int = 0
    congestion: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Settings of this machine by name, those that could be read, and routes by destination."""

    settings: Mapping[str, str]
    routes: Mapping[str, Route] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What records say of the traffic.

    Attributes:
        requests: decisions with a prompt.
        prompt_tokens: median prompt.
        reusable_tokens: tokens of a mean prompt that had been sent before.
        reuse: the same as a share of all prompt tokens.
        spread_ms: median distance between the nearest and the farthest candidate.
        ttft_ms: median time to the first token, None when none was seen.
        cached_known: addresses whose answers told cached tokens.
    """

    requests: int
    prompt_tokens: float
    reusable_tokens: float
    reuse: float
    spread_ms: float
    ttft_ms: float | None
    cached_known: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A deployment as it was found.

    Attributes:
        config: the picker's configuration.
        specs: its pool by address; where that is a cluster's, whatever the picker shows.
        picker_url: where the picker's HTTP listener is, empty when not known.
        ready: the picker's answer to ``/readyz``.
        metrics: its metrics, None when there is no such page.
        engines: what the endpoints answered.
        requests_sent: whether endpoints may be sent small requests.
        admin: URL of Envoy's admin interface, empty to leave Envoy out.
        dump: Envoy's configuration, None when there is none.
        no_dump: why there is none.
        kernel: settings of this machine, None when they say nothing of Envoy's.
        traffic: what records tell, None without records.
    """

    config: Config
    specs: Mapping[str, EndpointSpec] = field(default_factory=dict)
    picker_url: str = ""
    ready: Answer | None = None
    metrics: Page | None = None
    engines: tuple[Engine, ...] = ()
    requests_sent: bool = True
    admin: str = ""
    dump: Envoy | None = None
    no_dump: str = ""
    kernel: Kernel | None = None
    traffic: Traffic | None = None

    @property
    def endpoints(self) -> dict[str, EndpointSpec]:
        """Map the names that the picker has for endpoints to the pool's: each data-parallel rank has one."""
        return {name: spec for address, spec in self.specs.items() for name in ranked(address, spec.ranks)}

    @property
    def page(self) -> Page:
        """Give the picker's metrics to a check that needs them.

        Raises:
            NotFetchedError: there are none.
        """
        if self.metrics is None:
            raise NotFetchedError
        return self.metrics

    @property
    def envoy(self) -> Envoy:
        """Give Envoy's configuration to a check that needs it.

        Raises:
            NotFetchedError: there is none.
        """
        if self.dump is None:
            raise NotFetchedError
        return self.dump
