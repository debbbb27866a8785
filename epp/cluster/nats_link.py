"""The pickers of a pool over core NATS: one subject for all, one for each.

Owns the connection and its reconnects. No request waits for anything here: what cannot be sent is dropped,
and the next message heals it. All that is sent is signed (`epp.cluster.seal`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets as random
import socket
import ssl
import zlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error, SlowConsumerError
from nkeys import NkeysError

from epp.cluster.link import Link
from epp.cluster.messages import FileContent
from epp.cluster.seal import RefusedError, Seal, key_of
from epp.errors import ConfigError, UnreadableError
from epp.schedule.decision import SCHEMA_VERSION
from epp.wire import read, text, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nats.aio.msg import Msg

    from epp.clock import Clock
    from epp.cluster.messages import Group
    from epp.config.schema import Nats
    from epp.signals.datastore import Datastore

log = logging.getLogger(__name__)

_SUBJECT = "epp.1"
_CONNECT_S, _RETRY_S, _FIND_S = 2, 0.5, 1.0
#: A client that is away for longer is made anew.
_STUCK_S = 5.0
#: A server that does not answer pings for twice this is gone.
_PING_S = 1
#: Messages that wait to be sent, and bytes that a server may be behind in reading.
_OUTBOX, _PENDING_BYTES = 256, 4 * 1024 * 1024
#: Of a file that the leader sends.
_CONTENT_BYTES = 16 * 1024 * 1024
#: Messages that wait, from which on records are dropped: in-flight load goes first.
_RECORDS_OUTBOX = 64
#: Messages taken in one turn of the event loop, and those of a subject that may wait for their turn.
_A_TURN, _WAITING, _WAITING_BYTES = 32, 4096, 16 * 1024 * 1024
_CONTENTS, _RECORDS = msgspec.msgpack.Decoder(FileContent), msgspec.msgpack.Decoder(tuple[int, bytes])


class Channel:
    """Subjects of a connection whose messages are signed under keys of their own.

    Args:
        prefix: of its subjects.
        keys: the one to sign under, and others that are believed, too.
        origin: name of this process.
        link: has the connection.

    Attributes:
        seal: signs and believes.
        takes: what takes a message, with its sender's name, by subject.
    """

    def __init__(self, prefix: str, keys: Sequence[bytes], origin: str, link: NatsLink) -> None:
        self._link = link
        self.greetings = f"{prefix}.hello.{origin}"
        self.seal = Seal(
            keys, origin, lambda name, greeting: self.publish(f"{prefix}.hello.{name}", greeting)
        )
        self.takes: dict[str, Callable[[str, bytes], bytes | None]] = {}

    def publish(self, subject: str, data: bytes, most: int = _OUTBOX) -> None:
        """Send to all who listen, or drop it where ``most`` messages wait."""
        self._link.put(subject, self.seal.sign(subject, data), most)

    def listen(self, subject: str, take: Callable[[bytes], bytes | None]) -> None:
        """Hear a subject once connected; what ``take`` returns is the answer, None for none."""
        self.takes[subject] = lambda _, data: take(data)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Ask whoever listens to a subject; empty where nobody answers."""
        request = self.seal.sign(subject, data)
        answer = await self._link.request(subject, request, timeout_s)
        try:
            return self.seal.open_answer(request, answer) if answer else b""
        except RefusedError:
            return b""

    async def received(self, message: Msg) -> None:
        """Take a message.

        Raises:
            RefusedError: it is not to be believed.
            UnreadableError: it is none.
        """
        subject = message.subject
        if subject == self.greetings:
            self.seal.greeted(subject, message.data)
            return
        origin, content = self.seal.open(subject, message.data)
        answer = self.takes[subject](origin, content)
        if answer is not None and message.reply:
            await message.respond(self.seal.answer(message.data, answer))


class NatsLink(Link):
    """One picker's connection to its peers.

    Args:
        settings: where NATS is.
        group: whom this picker understands.
        datastore: its signals.
        clock: the time.
        base: folder that relative paths are relative to.
        source: name of the configuration file.
        secrets: of `prefix.secret_file`, and of the second file where there is one.
        decision: a recent decision of this picker as JSON, by id; empty where it is unknown.
        second: the group of pickers whose hashes are keyed by the second secret.
        term: the highest that this picker knew before it started; None of one that never leads.

    Attributes:
        on_content: takes the name of a file and what the leader has in it.
        on_records: takes records of other pickers, compressed, while this one leads.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(
        self,
        settings: Nats,
        group: Group,
        datastore: Datastore,
        clock: Clock,
        *,
        base: Path,
        source: str,
        secrets: Sequence[bytes],
        decision: Callable[[str], bytes],
        second: Group | None = None,
        term: int | None = None,
    ) -> None:
        host = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())
        super().__init__(group, datastore, clock, f"{host}-{random.token_hex(8)}", term=term, second=second)
        self._options = _options(settings, base, source)
        self._subject = f"{_SUBJECT}.{re.sub(r'[^A-Za-z0-9_-]', '_', group.pool)}"
        self._channels: list[Channel] = []
        self._pool = self.channel(self._subject, [key_of(secret, b"epp cluster") for secret in secrets])
        for name, take in {
            "all": self.index_sync.receive,
            f"to.{self._origin}": self.index_sync.receive,
            f"answers.{self._origin}": self._answer,
            "file": self._content,
            f"records.{self._origin}": self._lines,
            "decision": lambda name: decision(text(name)) or None,
        }.items():
            self._pool.listen(f"{self._subject}.{name}", take)
        self._pool.takes[f"{self._subject}.page"] = self._asked
        self._received_count = 0
        self._outbox: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_OUTBOX)
        self._client: Client | None = None
        #: Why it was not there, since it was there last.
        self._problems: set[str] = set()
        self.on_content: Callable[[str, bytes | None], None] = lambda *_: None
        self.on_records: Callable[[bytes], None] = lambda _: None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connected(self) -> bool:
        """Whether NATS is there."""
        return self._client is not None and self._client.is_connected

    def channel(self, prefix: str, keys: Sequence[bytes]) -> Channel:
        """Make further subjects, of which is heard what is listened to before `run`."""
        made = Channel(prefix, keys, self._origin, self)
        self._channels.append(made)
        return made

    def _publish(self, to: str, data: bytes) -> None:
        self._pool.publish(f"{self._subject}.{f'to.{to}' if to else 'all'}", data)

    def put(self, subject: str, data: bytes, most: int) -> None:
        """Send a signed message, or drop it where so many wait."""
        if not self.connected or self._outbox.qsize() >= most:
            self.dropped += 1
        else:
            self._outbox.put_nowait((subject, data))

    def hear_reports(self, maker: str, take: Callable[[bytes], None]) -> None:
        """Hear Envoy's reports about the decisions of a process, which their ids name so."""
        self._pool.listen(f"{self._subject}.reports.{maker}", take)

    def publish_report(self, maker: str, report: bytes) -> None:
        """Pass one on to the process that made its decision."""
        self._pool.publish(f"{self._subject}.reports.{maker}", report)

    def publish_content(self, name: str, content: bytes | None) -> None:
        """Send all pickers what the leader, which is this one, has in a file."""
        if (lead := self.leading.said(self._clock.wall_s())) is not None:
            packed = None if content is None else zlib.compress(content, 1)
            told = FileContent(self.group, lead, name, packed)
            self._pool.publish(f"{self._subject}.file", msgspec.msgpack.encode(told))

    def publish_records(self, lines: bytes) -> None:
        """Send the leader records, where this picker follows one; from the thread that writes them."""
        loop = self._loop
        if loop is not None and self.leading.follows:
            loop.call_soon_threadsafe(self._records_to_leader, zlib.compress(lines, 1))

    def _records_to_leader(self, lines: bytes) -> None:
        if self.leading.follows:
            data = msgspec.msgpack.encode((SCHEMA_VERSION, lines))
            self._pool.publish(f"{self._subject}.records.{self.leading.leader}", data, _RECORDS_OUTBOX)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Ask whoever listens to a subject, signed; empty where nobody answers."""
        if self._client is None or not self.connected:
            return b""
        try:
            answer = await self._client.request(subject, data, timeout=timeout_s)
        except (Error, OSError, TimeoutError):
            return b""
        return answer.data

    async def run(self) -> None:
        """Connect, and share until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (self._connect(), self._send(), self._share()):
                    tasks.create_task(work)
        finally:
            self._loop = None
            await self._leave()

    async def _leave(self) -> None:
        if self._client is None:
            return
        if self._client.is_connected:
            self.index_sync.leave()
            while not self._outbox.empty():
                await self._client.publish(*self._outbox.get_nowait())
        client, self._client = self._client, None
        await client.close()

    async def _connect(self) -> None:
        while True:
            client = Client()
            try:
                await client.connect(
                    **self._options,
                    error_cb=self._failed,
                    disconnected_cb=self._lost,
                    reconnected_cb=self._again,
                )
                for channel in self._channels:
                    for subject in (channel.greetings, *channel.takes):
                        await client.subscribe(
                            subject,
                            cb=partial(self._received, channel),
                            pending_msgs_limit=_WAITING,
                            pending_bytes_limit=_WAITING_BYTES,
                        )
            except (OSError, Error, TimeoutError, NkeysError) as error:
                await self._failed(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._problems.clear()
                self._client = client  # from here on it connects again by itself
                log.info("sharing with the pickers of %s", self._subject)
                await _until_stuck(client)
                self._client = None
                with suppress(TimeoutError, Error, OSError):
                    await asyncio.wait_for(client.close(), _CONNECT_S)

    async def _send(self) -> None:
        while True:
            subject, data = await self._outbox.get()
            if self._client is not None:
                try:
                    await self._client.publish(subject, data)
                except (Error, OSError):
                    self.dropped += 1

    async def _received(self, channel: Channel, message: Msg) -> None:
        self._received_count += 1
        if self._received_count % _A_TURN == 0:
            await asyncio.sleep(0)
        ignored = self.index_sync.counts.ignored
        try:
            await channel.received(message)
        except RefusedError as error:
            ignored[error.reason] += 1
        except UnreadableError:
            ignored["unreadable"] += 1
        except Exception:
            log.exception("a message of another picker was not taken, by a fault of this one")
            ignored["fault"] += 1

    def _tick(self) -> None:
        for channel in self._channels:
            channel.seal.tick()

    def _content(self, data: bytes) -> None:
        leading, told = self.leading, read(_CONTENTS, data)
        if not self.index_sync.fits(told.group):
            return  # its other messages are counted
        if told.lead.term >= leading.term:
            leading.hear(told.lead.leader, told.lead, self._clock.mono_s(), self._clock.wall_s())
        if leading.accepts(told.lead):
            packed = told.content
            self.on_content(told.name, None if packed is None else unpack(packed, _CONTENT_BYTES))
        else:
            self.index_sync.counts.ignored["a lead that is over"] += 1

    def _lines(self, data: bytes) -> None:
        schema, lines = read(_RECORDS, data)
        if schema != SCHEMA_VERSION:
            self.index_sync.counts.ignored["records of another version"] += 1
        elif self.leading.leads:
            self.on_records(lines)

    async def find(self, decision_id: str) -> bytes:
        """Ask the others for a decision; JSON, empty where none answers in `_FIND_S`."""
        return await self._pool.request(f"{self._subject}.decision", decision_id.encode(), _FIND_S)

    def ask(self, question: bytes) -> None:
        """Ask the live pages of all others something."""
        self._pool.publish(f"{self._subject}.page", question)

    def _asked(self, origin: str, question: bytes) -> None:
        self._question(question, partial(self._pool.publish, f"{self._subject}.answers.{origin}"))

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self.index_sync.counts.ignored["too many at once"] += 1
            return
        problem = str(error) or type(error).__name__
        if problem not in self._problems:  # it is tried twice a second
            log.warning("no NATS, this picker decides alone: %s", problem)
            self._problems.add(problem)

    async def _lost(self) -> None:
        if self._client is not None:  # it was not closed here
            await self._failed(ConnectionError("the connection was lost"))

    async def _again(self) -> None:
        self._problems.clear()
        log.info("NATS is back: sharing again")


async def _until_stuck(client: Client) -> None:
    """Wait until a client is away for so long that it may not try any more: a fault in its task ends that."""
    away_s = 0.0
    while away_s < _STUCK_S:
        await asyncio.sleep(_RETRY_S)
        away_s = 0.0 if client.is_connected else away_s + _RETRY_S


def _options(settings: Nats, base: Path, source: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [url.strip() for url in settings.url.split(",")],
        "name": "gorgo-epp",
        "no_echo": True,
        "connect_timeout": _CONNECT_S,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RETRY_S,
        "ping_interval": _PING_S,
        "max_outstanding_pings": 2,
        "pending_size": _PENDING_BYTES,
    }
    if settings.credentials_file:
        file = base / settings.credentials_file
        try:
            is_jwt = "BEGIN NATS USER JWT" in file.read_text()
        except (OSError, UnicodeDecodeError) as error:  # whose words may quote the file
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            problem = f"the file cannot be read: {why}"
            raise ConfigError(source, "nats.credentials_file", problem) from None
        options["user_credentials" if is_jwt else "nkeys_seed"] = str(file)
    if settings.ca_file:
        try:
            options["tls"] = ssl.create_default_context(cafile=str(base / settings.ca_file))
        except OSError as error:
            raise ConfigError(source, "nats.ca_file", str(error)) from error
    return options
