"""Probes, scrapes and the list of models: one poller per endpoint over one pinned warm connection.

Owns the HTTP client side towards engines. Feeds what it measures into a `Sink` (the picker's signals) and
knows no formula. An RTT sample counts only when no connection had to be opened for it: the published numbers
of others are mostly connection set-up.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from epp.keyed_uniform import keyed_uniform
from epp.server.client_credentials import client_tls
from epp.server.keep_alive import KeepAlive
from epp.server.relays import RelayedConnection, Through, relay_to
from epp.signals.metrics_text import MetricsReader
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.pool import EndpointSpec
    from epp.config.relays import Relays
    from epp.config.schema import Probe, Scrape
    from epp.server.client_credentials import TokenFile
    from epp.server.keep_alive import Answer
    from epp.signals.metrics_text import EngineSample

_Credentials = TypeVar("_Credentials", "Scrape", "EndpointSpec")

MAX_EXPOSITION_BYTES = 8 * 1024 * 1024
#: Adapters come and go while engines run, and an engine may be started again with another model.
MODELS_INTERVAL_S = 60.0
#: Moments in an interval at which probes or scrapes begin, and endpoints that may share one in a large pool.
SLOTS, MAX_PER_SLOT = 20, 8
#: Where in a slot probes begin: away from scrapes, at intervals as by default.
PROBES_AT = 0.25
#: After an answer that took longer than the interval.
SHORTEST_PAUSE_S = 0.01
#: After a fault of the picker's own: whoever reads the log needs it told now and then, not each interval.
FAULT_PAUSE_S = 10.0

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes measurements; see `epp.server.feed.SignalFeed`."""

    def probed(self, address: str, rtt_ms: float | None, now_s: float) -> None: ...  # noqa: D102
    def probe_failed(self, address: str, problem: str, now_s: float) -> None: ...  # noqa: D102
    def scraped(self, address: str, sample: EngineSample, now_s: float) -> None: ...  # noqa: D102
    def scrape_failed(self, address: str, problem: str, now_s: float) -> None: ...  # noqa: D102
    def models_listed(  # noqa: D102
        self, address: str, unknown: frozenset[str], listed: Mapping[str, ListedModel]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """What a poller needs of an endpoint.

    Attributes:
        address: canonical ``host:port``.
        base_url: scheme and authority.
        server_name: SNI and certificate name, None for the host itself.
        ca_file: CA bundle, the system's when empty.
        bearer_token_file: token file, none when empty.
        engine_names: names under which its engine is asked for models, any when empty.
        through: the relay that it is asked through, None for directly.
    """

    address: str
    base_url: str
    server_name: str | None
    ca_file: str
    bearer_token_file: str
    engine_names: frozenset[str] = frozenset()
    through: Through | None = None


def with_credentials_of(section: _Credentials, base: Path) -> _Credentials:
    """Resolve the files of the scrape section, or of an endpoint's entry, relative to a folder."""
    files = {name: getattr(section, name) for name in ("ca_file", "bearer_token_file")}
    beside = {name: str(base / file) for name, file in files.items() if file}
    return msgspec.structs.replace(section, **beside)


def target_of(address: str, spec: EndpointSpec, scrape: Scrape, relays: Relays | None = None) -> Target:
    """Describe an endpoint to poll: its own credentials, else the scrape section's; its relay, if any."""
    endpoint = spec.endpoint()
    return Target(
        address=address,
        base_url=f"{'https' if spec.tls else 'http'}://{address}",
        server_name=spec.server_name or None,
        ca_file=spec.ca_file or scrape.ca_file,
        bearer_token_file=spec.bearer_token_file or scrape.bearer_token_file,
        engine_names=frozenset(endpoint.served_name(name) for name in endpoint.models),
        through=None if relays is None else relay_to(spec.region, relays),
    )


class PollSchedule:
    """When endpoints are asked: each once an interval, at a place of its own, a few together.

    What runs alone every few milliseconds finds the processor's caches taken by others each time, and more
    than a few would keep requests waiting.

    Args:
        interval_s: between two questions to one endpoint, 0 for none.
        offset: where between two slots questions begin, as a share of a slot.

    Attributes:
        slot_s: between two moments at which questions begin; 0 for any moment.
    """

    def __init__(self, interval_s: float, offset: float = 0.0) -> None:
        self.interval_s, self._offset = interval_s, offset
        self.slot_s = 0.0

    def spread(self, endpoints: int) -> None:
        """Divide the interval for so many endpoints."""
        self.slot_s = self.interval_s * min(1.0 / SLOTS, MAX_PER_SLOT / max(endpoints, 1))

    def pause_s(self, started_s: float, now_s: float, place: float) -> float:
        """Compute the pause until an endpoint's next turn.

        All are asked at once at start, and all are late together where the process was held up; each returns
        to its own place. What was asked within half an interval before its turn is asked at the next.

        Args:
            started_s: when it was asked the last time.
            now_s: when that was over.
            place: its place in the interval, at least 0 and below 1.
        """
        turns = round(started_s / self.interval_s - place) + 1
        next_s = max((turns + place) * self.interval_s, now_s + SHORTEST_PAUSE_S)
        if self.slot_s <= 0.0:
            return next_s - now_s
        slot_s = (round(next_s / self.slot_s - self._offset) + self._offset) * self.slot_s
        return slot_s - now_s if slot_s > now_s else slot_s + self.slot_s - now_s


class Poller:
    """Probes and scrapes one endpoint for ever.

    Args:
        target: the endpoint.
        probe: path of probes, and the time limit of all questions.
        scrape: path of scrapes.
        probes: when probes begin.
        scrapes: when scrapes begin.
        sink: where results go.
        clock: the time.
        token: of the target's `bearer_token_file`, followed by the caller; None without one.
        known_as: from an endpoint to what a relay calls it.
    """

    def __init__(
        self,
        target: Target,
        *,
        probe: Probe,
        scrape: Scrape,
        sink: Sink,
        clock: Clock,
        probes: PollSchedule | None = None,
        scrapes: PollSchedule | None = None,
        token: TokenFile | None = None,
        known_as: Callable[[str], str] = str,
    ) -> None:
        self._target, self._probe, self._scrape = target, probe, scrape
        self._probes = probes or PollSchedule(probe.interval_s)
        self._scrapes = scrapes or PollSchedule(scrape.interval_s)
        self._sink, self._clock, self._known_as, self._token = sink, clock, known_as, token
        self._reader = MetricsReader()

    async def run(self) -> None:
        """Poll until cancelled."""
        works: list[Callable[[Connection], Awaitable[None]]] = []
        for schedule, salt, once, failed in (
            (self._probes, "probe", self._probe_once, self._failed_probe),
            (self._scrapes, "scrape", self._scrape_once, self._failed_scrape),
        ):
            if schedule.interval_s:
                works.append(partial(self._kept, partial(self._every, schedule, salt, once), failed))
        if self._probes.interval_s:
            works.append(partial(self._kept, self._check_models, None))
        if self._token is not None:
            await self._token.first_read()
        connections = [await self._connected() for _ in works]  # opened when first asked
        try:
            await asyncio.gather(
                *(work(connection) for work, connection in zip(works, connections, strict=True))
            )
        finally:
            for connection in connections:
                connection.close()
            await asyncio.sleep(0)  # sockets close one turn of the loop later

    async def _kept(self, work: _Work, failed: Callable[[str], None] | None, connection: Connection) -> None:
        """Begin a work again, after a while, that raised what nobody foresaw: a fault of the picker's own."""
        while True:
            try:
                await work(connection)
            except Exception as error:
                log.exception("polling %s failed, and goes on in %g s", self._target.address, FAULT_PAUSE_S)
                if failed is not None:
                    failed(_problem(error))
            connection.close()
            await asyncio.sleep(FAULT_PAUSE_S)

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else self._token.headers()

    async def _connected(self) -> Connection:
        """Make a connection, as soon as the certificates that it needs can be read."""
        plain = self._target.through is None and not self._target.base_url.startswith("https")
        while True:
            try:
                return self._connection() if plain else await in_daemon_thread(self._connection)
            except (OSError, ValueError) as error:
                problem = _problem(error)
            if self._probe.interval_s:
                self._failed_probe(problem)
            if self._scrape.interval_s:
                self._failed_scrape(problem)
            await asyncio.sleep(self._probe.interval_s or self._scrape.interval_s)

    def _connection(self) -> Connection:
        target, tls = self._target, None
        if target.through is not None:
            return RelayedConnection(
                target.through, target.address, self._known_as, max_body_bytes=MAX_EXPOSITION_BYTES
            )
        if target.base_url.startswith("https"):
            tls = client_tls(target.ca_file)
        authority = target.base_url.partition("://")[2]
        return KeepAlive(
            authority, tls=tls, server_name=target.server_name, max_body_bytes=MAX_EXPOSITION_BYTES
        )

    async def _every(self, schedule: PollSchedule, salt: str, work: _Work, connection: Connection) -> None:
        """Call ``work`` each interval, endpoints spread over it; a slow answer delays, never piles up."""
        place = keyed_uniform(0, self._target.address, salt)
        # The second time comes within an interval of the first: only then is the connection warm.
        sooner_s = schedule.interval_s / 2
        while True:
            started_s = self._clock.mono_s()
            await work(connection)
            await asyncio.sleep(schedule.pause_s(started_s - sooner_s, self._clock.mono_s(), place))
            sooner_s = 0.0

    async def _probe_once(self, connection: Connection) -> None:
        opened = connection.opened
        try:
            answer = await connection.get(self._probe.path, self._headers(), self._probe.timeout_s)
        except (OSError, TimeoutError, ValueError) as error:
            self._failed_probe(_problem(error))
            return
        answered_s = self._clock.mono_s()
        if answer.status >= 500:
            self._sink.probe_failed(self._target.address, f"status {answer.status}", answered_s)
            return
        warm = opened == connection.opened
        self._sink.probed(self._target.address, answer.took_s * 1e3 if warm else None, answered_s)

    async def _scrape_once(self, connection: Connection) -> None:
        try:
            answer = await connection.get(self._scrape.path, self._headers(), self._probe.timeout_s)
        except (OSError, TimeoutError, ValueError) as error:
            self._failed_scrape(_problem(error))
            return
        if answer.status != 200:
            self._failed_scrape(f"status {answer.status}")
            return
        sample = self._reader.read(answer.body)
        self._sink.scraped(self._target.address, sample, self._clock.mono_s())

    async def _check_models(self, connection: Connection) -> None:
        """Ask for the engine's models once it is up, and now and then."""
        while True:
            listed = await self._listed(connection)
            if listed:
                unknown = self._target.engine_names - listed.keys()
                self._sink.models_listed(self._target.address, unknown, listed)
            await asyncio.sleep(self._probe.interval_s if listed is None else MODELS_INTERVAL_S)

    async def _listed(self, connection: Connection) -> dict[str, ListedModel] | None:
        """Ask for the engine's models, none when it does not list them; None when it is not up."""
        try:
            answer = await connection.get("/v1/models", self._headers(), self._probe.timeout_s)
        except (OSError, TimeoutError, ValueError):
            return None
        connection.close()  # it is not asked again soon
        if answer.status >= 500:
            return None
        return parse_models(answer.body) if answer.status == 200 else {}

    def _failed_probe(self, problem: str) -> None:
        self._sink.probe_failed(self._target.address, problem, self._clock.mono_s())

    def _failed_scrape(self, problem: str) -> None:
        self._sink.scrape_failed(self._target.address, problem, self._clock.mono_s())


class Connection(Protocol):
    """`KeepAlive`, or the same through a relay."""

    @property
    def opened(self) -> int: ...  # noqa: D102
    async def get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class _Work(Protocol):
    async def __call__(self, connection: Connection, /) -> None: ...


def _problem(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class ListedModel(NamedTuple):
    """A model as its engine lists it.

    Attributes:
        context_tokens: context length, prompt and answer together, where the engine tells it: vLLM and SGLang
            do, as ``max_model_len``.
        root: what the engine was started with, a hub id or a folder; empty when not known.
        parent: the base model of an adapter; empty for others.
    """

    context_tokens: int | None = None
    root: str = ""
    parent: str = ""


class _Model(msgspec.Struct):
    id: str
    max_model_len: object = None
    root: object = None
    parent: object = None


class _Models(msgspec.Struct):
    data: list[_Model]


_DECODER = msgspec.json.Decoder(_Models)


def parse_models(body: bytes) -> dict[str, ListedModel]:
    """Read the names that requests may give, adapters among them; empty when the body tells none."""
    try:
        models = _DECODER.decode(body).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {
        model.id: ListedModel(_tokens(model.max_model_len), _text(model.root), _text(model.parent))
        for model in models
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and value is not True else None
