"""Who may say something on a bus, and that it is said once.

Owns the number of this process' messages, and which of each peer's were heard last.

Rules
- A message is signed, together with its subject, its sender's name and its number, under a key that all of
  the bus share. What is not, or under another key, is refused.
- A process has another name at each start. Its messages count once it has answered a challenge, so that
  nobody can play back what an earlier process said; from then on each number counts once for a subject.
- An answer is signed together with the request.
- No clock says what is old.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated

import msgspec

from epp.cluster.messages import Origin  # noqa: TC001  # msgspec reads the annotation at run time
from epp.errors import EppError
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Before each message; the number is one more than that of the messages before there were signatures.
_FORMAT = b"epp\x02"
_MAC_BYTES, _CHALLENGE_BYTES = 16, 16
_HEAD_BYTES = len(_FORMAT) + _MAC_BYTES
#: Peers that are listened to, and greetings that are answered between two calls of `Seal.tick`.
MAX_PEERS, _GREETINGS = 256, 1024


class RefusedError(EppError):
    """A message is not believed.

    Args:
        reason: ``unsigned``, ``unproven``, ``replayed`` or ``too many peers``, as metrics name it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class _Sealed(msgspec.Struct, array_like=True, frozen=True):
    """What is signed."""

    origin: Origin
    number: Annotated[int, msgspec.Meta(ge=0)]
    content: bytes


_Word = Annotated[bytes, msgspec.Meta(max_length=_CHALLENGE_BYTES)]
_SEALED, _GREETING = msgspec.msgpack.Decoder(_Sealed), msgspec.msgpack.Decoder(tuple[_Word, _Word])
_ENCODE = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _PeerPicker:
    first: int  # number of the message that proved it
    last: dict[str, int] = field(default_factory=dict)  # by subject


def key_of(secret: bytes, use: bytes) -> bytes:
    """Derive the key of a bus from a secret that serves other uses, too."""
    return hashlib.blake2b(secret, digest_size=32, person=use).digest()


class Seal:
    """One process' part in a bus.

    Args:
        keys: the one to sign under, and others that are believed, too.
        origin: name of this process, another one at each start.
        greet: sends a greeting to a process by its name.
    """

    def __init__(self, keys: Sequence[bytes], origin: str, greet: Callable[[str, bytes], None]) -> None:
        self._keyed = [hashlib.blake2b(key=key, digest_size=_MAC_BYTES) for key in keys]
        self.origin, self._greet = origin, greet
        self._sent = 0
        self._peers: dict[str, _PeerPicker] = {}
        #: What those were asked that have proved nothing yet, and who was greeted since the last tick.
        self._challenges: dict[str, bytes] = {}
        self._greeted: set[str] = set()
        self._greetings = 0

    def tick(self) -> None:
        """Let time pass; call it every second. Who is silent need not prove itself any more."""
        self._challenges = {name: self._challenges[name] for name in self._greeted & self._challenges.keys()}
        self._greeted.clear()
        self._greetings = 0

    def sign(self, subject: str, content: bytes) -> bytes:
        """Make a message that counts once, on this subject."""
        self._sent += 1
        return self._signed(subject.encode(), _ENCODE(_Sealed(self.origin, self._sent, content)))

    def open(self, subject: str, data: bytes) -> tuple[str, bytes]:
        """Return who says something on a subject, and what.

        Raises:
            RefusedError: it is not to be believed. Who has proved nothing yet is challenged.
            UnreadableError: it is signed, and no message.
        """
        sealed = self._read(subject, data)
        if not self._is_new(subject, sealed):
            self._challenge(sealed.origin)
            raise RefusedError("unproven")
        return sealed.origin, sealed.content

    def greeted(self, subject: str, data: bytes) -> None:
        """Take a greeting: a challenge, the answer to one, or both.

        Raises:
            RefusedError, UnreadableError: as `open` says.
        """
        sealed = self._read(subject, data)
        known = self._is_new(subject, sealed)
        self._greetings += 1
        if self._greetings > _GREETINGS:
            raise RefusedError("too many peers")
        challenge, answer = read(_GREETING, sealed.content)
        name = sealed.origin
        if not known and answer and compare_digest(answer, self._challenges.get(name, b"")):
            while len(self._peers) >= MAX_PEERS:
                del self._peers[next(iter(self._peers))]
            self._peers[name], known = _PeerPicker(sealed.number), True
            del self._challenges[name]
        if challenge:
            self._send(name, b"" if known else self._challenge_of(name), challenge)

    def answer(self, request: bytes, content: bytes) -> bytes:
        """Sign what answers a request."""
        return self._signed(b"\0" + request[:_HEAD_BYTES], content)

    def open_answer(self, request: bytes, data: bytes) -> bytes:
        """Return what answers a request.

        Raises:
            RefusedError: it is not signed.
        """
        return bytes(self._checked(b"\0" + request[:_HEAD_BYTES], data))

    def _signed(self, about: bytes, body: bytes) -> bytes:
        return b"".join((_FORMAT, _mac(self._keyed[0], about, body), body))

    def _checked(self, about: bytes, data: bytes) -> memoryview:
        body, mac = memoryview(data)[_HEAD_BYTES:], data[len(_FORMAT) : _HEAD_BYTES]
        if not data.startswith(_FORMAT) or not any(
            compare_digest(mac, _mac(keyed, about, body)) for keyed in self._keyed
        ):
            raise RefusedError("unsigned")
        return body

    def _read(self, subject: str, data: bytes) -> _Sealed:
        return read(_SEALED, self._checked(subject.encode(), data))

    def _is_new(self, subject: str, sealed: _Sealed) -> bool:
        """Note a message of a peer; False for one that has proved nothing."""
        peer = self._peers.get(sealed.origin)
        if sealed.origin == self.origin:
            raise RefusedError("replayed")
        if peer is None:
            return False
        if sealed.number <= peer.first:  # sent before its proof, which came sooner
            raise RefusedError("unproven")
        if sealed.number <= peer.last.get(subject, 0):
            raise RefusedError("replayed")
        peer.last[subject] = sealed.number
        return True

    def _challenge_of(self, name: str) -> bytes:
        if name not in self._challenges and len(self._challenges) >= MAX_PEERS:
            raise RefusedError("too many peers")
        self._greeted.add(name)
        return self._challenges.setdefault(name, secrets.token_bytes(_CHALLENGE_BYTES))

    def _challenge(self, name: str) -> None:
        if name not in self._greeted:
            self._send(name, self._challenge_of(name), b"")

    def _send(self, name: str, challenge: bytes, answer: bytes) -> None:
        self._greet(name, _ENCODE((challenge, answer)))


def _mac(keyed: hashlib.blake2b, about: bytes, body: bytes | memoryview) -> bytes:
    mac = keyed.copy()
    mac.update(about + b"\0")
    mac.update(body)
    return mac.digest()
