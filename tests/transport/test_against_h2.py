"""Exchanges drawn at random with another implementation of HTTP/2, `h2`: strict with windows, and with frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, SettingsAcknowledged, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings
from hypothesis import given
from hypothesis import strategies as st

from epp.rpc.http2.connection import CallEnded, CallStarted, MessageReceived
from epp.rpc.http2.limits import Limits
from epp.rpc.http2.status import Status
from tests.kit.http2 import REQUEST, message, serving

if TYPE_CHECKING:
    from epp.rpc.http2.connection import Call, CallEvent

CONNECTION_BYTES = 100_000
LIMITS = Limits(max_streams=5, stream_window_bytes=30_000, connection_window_bytes=CONNECTION_BYTES)
SIZES = (0, 1, 300, 5000, 40_000)


class Counted:
    """Room for everything, which counts."""

    held = 0

    def reserve(self, size: int) -> bool:
        self.held += size
        return True

    def release(self, size: int) -> None:
        self.held -= size


@dataclass
class Asked:
    """A stream as its client sees it; what is echoed is what was sent."""

    sent: bytes = b""
    rest: bytes = b""
    answer: bytes = b""
    ended: bool = False
    over: bool = False
    given_up: bool = False


@dataclass
class Exchange:
    """A client and a server that echoes messages; what lies between is cut and held up at random."""

    random: Random
    asked: dict[int, Asked] = field(default_factory=dict)
    unread: list[tuple[int, int]] = field(default_factory=list)
    held: list[Call] = field(default_factory=list)
    may_set: bool = False

    def __post_init__(self) -> None:
        self.room, window = Counted(), self.random.choice((0, 1, 1000, 65_535))
        self.server = serving(limits=LIMITS, room=self.room)
        self.client = H2Connection(H2Configuration())
        self.client.local_settings = Settings(initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.client.initiate_connection()
        self.carry()

    def carry(self) -> None:
        for piece in self._pieces(self.client.data_to_send()):
            self._serve(self.server.receive(piece, 0.0))
        for piece in self._pieces(self.server.output()):
            for event in self.client.receive_data(piece):
                if isinstance(event, DataReceived):
                    self.asked[event.stream_id].answer += event.data
                    self.unread.append((event.flow_controlled_length, event.stream_id))
                elif isinstance(event, StreamEnded | StreamReset):
                    self.asked[event.stream_id].over = True
                self.may_set |= isinstance(event, SettingsAcknowledged)
        assert not self.server.closed, self.server.failed

    def _pieces(self, data: bytes) -> list[bytes]:
        size = self.random.choice((1, 10, 1000, 100_000)) if len(data) < 2000 else 10_000
        return [data[at : at + size] for at in range(0, len(data), size)]

    def _serve(self, events: list[CallEvent]) -> None:
        for event in events:
            if isinstance(event, CallStarted) and not self.random.randrange(4):
                event.call.hold()
                self.held.append(event.call)
            elif isinstance(event, MessageReceived):
                event.call.send(bytes(event.message))
            elif isinstance(event, CallEnded):
                event.call.finish(Status.OK)

    def step(self) -> None:
        client, random = self.client, self.random
        going = [number for number, asked in self.asked.items() if not asked.ended]
        number = random.choice(going) if going else 0
        match random.randrange(8):
            case 0 if client.open_outbound_streams < LIMITS.max_streams:
                number = client.get_next_available_stream_id()
                client.send_headers(number, REQUEST)
                self.asked[number] = Asked()
            case 1 | 2 if going:
                self.send(number, end=not random.randrange(4))
            case 3 if going and not random.randrange(3):
                client.reset_stream(number, ErrorCodes.CANCEL)
                asked = self.asked[number]
                asked.ended = asked.over = asked.given_up = True
            case 4 if self.may_set:
                self.may_set = False  # h2 takes an acknowledgement for that of all that it has sent
                client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: random.choice((0, 9, 500, 65_535))})
            case 5 if self.unread:
                client.acknowledge_received_data(*self.unread.pop(random.randrange(len(self.unread))))
            case 6 if self.server.sender.corked:
                self._serve(self.server.uncork())
            case 6 if not random.randrange(3):
                self.server.sender.corked = True
            case 7 if self.held:
                self.held.pop().release()

    def send(self, number: int, *, end: bool) -> None:
        """A piece of a message, as long as windows allow, padded or not."""
        asked, padding = self.asked[number], self.random.choice((None, 0, 3, 255))
        if not asked.rest and not end:
            body = self.random.randbytes(self.random.choice(SIZES))
            asked.rest = message(body)
        most = (
            min(self.client.local_flow_control_window(number), 16_384)
            - (-1 if padding is None else padding)
            - 1
        )
        size = min(len(asked.rest), most, self.random.choice((1, 7, 50_000)))
        if size < 0 or (not size and asked.rest):
            return
        piece, asked.rest = asked.rest[:size], asked.rest[size:]
        asked.ended = end and not asked.rest
        asked.sent += piece
        self.client.send_data(number, piece, end_stream=asked.ended, pad_length=padding)

    def wind_up(self) -> None:
        """Everybody reads, and ends what has begun."""
        for turn in range(60):
            self._serve(self.server.uncork())
            while self.held:
                self.held.pop().release()
            while self.unread:
                self.client.acknowledge_received_data(*self.unread.pop())
            self.client.increment_flow_control_window(1_000_000)
            for number, asked in self.asked.items():
                if not asked.over and turn < 3:
                    self.client.increment_flow_control_window(1_000_000, number)
                while not asked.ended and self.client.local_flow_control_window(number) > 300:
                    self.send(number, end=True)
            self.carry()


@given(seed=st.integers(0, 2**32))
def test_what_is_sent_comes_whole_and_nothing_is_left_of_it(seed: int) -> None:
    random = Random(seed)
    exchange = Exchange(random)
    for _ in range(120):
        exchange.step()
        if random.randrange(3):
            exchange.carry()
    exchange.wind_up()
    for number, asked in exchange.asked.items():
        assert asked.over, number
        assert asked.answer == asked.sent or (asked.given_up and asked.sent.startswith(asked.answer)), number
    server = exchange.server
    assert (server.streams, exchange.room.held) == ([], 0)
    assert server._window == exchange.client.outbound_flow_control_window
