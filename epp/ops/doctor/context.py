"""What checks look at and what they say. Pure: `epp.ops.doctor.fetch` fills the context."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.ops.doctor.engines import Engine
    from epp.ops.doctor.envoy_dump import Envoy
    from epp.ops.doctor.fetch import Answer
    from epp.ops.doctor.network import Kernel
    from epp.ops.doctor.picker import Page
    from epp.ops.doctor.traffic import Traffic

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
