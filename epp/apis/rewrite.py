"""The few members of a request body that the picker may set, and the public model name put back into answers.

Owns the splice: a body is cut into its top-level members, each an untouched run of bytes, and put together
again with some of them replaced. Knows no API and no endpoint. Rules:

* Of a member that is there twice the last one holds, as in every decoder that engines use, and only that one
  goes on: no two readers can then see different values.
* A name may be written with escapes; it is compared and written on as what it means.
* White space between top-level members is not kept.

Owns the search for the places where answers, which arrive in pieces of any size, name their model: the member
``model`` of the outermost object (OpenAI, rerank, embeddings), of ``message`` in it (Anthropic's
``message_start``) or of ``response`` in it (OpenAI responses). Objects that a model wrote itself, such as
tool inputs, are deeper and stay. Knows no transport. Rules:

* Not a byte is held back: what is before the value goes on at once, the value's own bytes are dropped as they
  come. So nothing has to be flushed at the end, and no piece waits for another.
* Whatever comes, the bytes outside of a model's value go on as they came; nothing raises.
* The result does not depend on how the bytes were cut.
* In an event stream each line stands for itself (engines write one JSON document a line); the rest of a line
  is not looked at once its model is found.

`epp/envoy/restore_model.lua` is the same machine for answers that do not pass the picker; one set of tests
holds for both.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from epp.apis.decode import unmarked
from epp.errors import ClientError

if TYPE_CHECKING:
    from epp.apis.types import Headers


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODE = msgspec.json.Encoder().encode
_NULL = b"null"
_INCLUDE_USAGE = "include_usage"
_STREAM_OPTIONS = "stream_options"


def rewrite(body: bytes, *, model: str | None = None, include_usage: bool = False) -> bytes:
    """Return a JSON object with another ``model``, or with ``stream_options.include_usage`` set.

    Args:
        body: the object, in UTF-8.
        model: the model's name in the new body, None to leave it.
        include_usage: ask for ``usage`` in an event stream where the client says nothing on it; an explicit
            ``false`` stays.

    Raises:
        ClientError: 400, the body is not a JSON object.
    """
    try:
        members = _members(unmarked(body))
        if model is not None:
            members["model"] = msgspec.Raw(_ENCODE(model))
        if include_usage:
            _ask_for_usage(members)
        return _ENCODE(members)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ClientError(400, f"The body is not valid JSON: {error}") from None


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    """Cut a body into its members; what Python's `json` alone takes (``NaN``, lone surrogates) stays."""
    try:
        return _MEMBERS.decode(body)
    except msgspec.DecodeError:
        whole = json.loads(body)
        if not isinstance(whole, dict):
            raise
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in whole.items()}


def _ask_for_usage(members: dict[str, msgspec.Raw]) -> None:
    given = members.get(_STREAM_OPTIONS)
    options = {} if given is None or bytes(given).strip() == _NULL else _MEMBERS.decode(given)
    said = options.get(_INCLUDE_USAGE)
    if said is None or bytes(said).strip() == _NULL:
        options[_INCLUDE_USAGE] = msgspec.Raw(b"true")
        members[_STREAM_OPTIONS] = msgspec.Raw(_ENCODE(options))


_MODEL = b"model"
#: Members of the outermost object whose objects name a model, too.
_HOLDERS = (b"message", b"response")
_LONGEST_NAME = max(len(name) for name in (_MODEL, *_HOLDERS))
_SPACE = b" \t\r"  # a line feed outside of strings is white space in a body and an end in an event stream
_LINE_FEED = 0x0A
_QUOTE, _BACKSLASH, _COLON = b'"\\:'
_OPENING = b"{["
#: Content types whose documents are lines.
_LINES = ("text/event-stream", "ndjson", "jsonl")


def _usual(line_feed: bytes, space: bytes) -> re.Pattern[bytes]:
    """Match what most documents begin with: plain texts and scalars, then the model, its value group 1.

    Takes nothing that the machine would see otherwise, and does at once what it does token by token.
    """
    text = rb'"[^"\\' + line_feed + rb']*+"'
    scalar = rb"[-+.\w]++"
    colon = space + b":" + space
    member = rb'(?!"model")' + text + colon + b"(?:" + text + b"|" + scalar + b")" + space + b"," + space
    value = rb'"([^"\\' + line_feed + rb']*+)"'
    opening = rb'[^"{}\[\]' + line_feed + rb"]*+\{" + space
    return re.compile(opening + b"(?:" + member + rb')*+"model"' + colon + value)


_USUAL_LINE = _usual(rb"\n", rb"[ \t\r]*+")
_USUAL_BODY = _usual(b"", rb"[ \t\r\n]*+")


class _Phase(Enum):
    OUTSIDE = 0  # between strings
    TEXT = 1  # in a string that says nothing to us
    NAME = 2  # in a string that may be a member's name we look for
    NAMED = 3  # behind such a string: a colon makes it a name
    VALUED = 4  # behind the colon
    MODEL = 5  # in the value that is replaced
    PASSED = 6  # the model is found


class ModelRestorer:
    """One answer.

    Args:
        model: the name that the client knows.
        events: whether the answer is an event stream.
    """

    def __init__(self, model: str, *, events: bool) -> None:
        self._model = msgspec.json.encode(model)[1:-1]
        self._events = events
        # An event stream's lines end what is open in them; in a body no line feed has a meaning.
        self._tokens = re.compile(rb'["{}\[\]\n]' if events else rb'["{}\[\]]')
        self._text = re.compile(rb'["\\\n]' if events else rb'["\\]')
        self._usual = _USUAL_LINE if events else _USUAL_BODY
        self._begin()

    def _begin(self) -> None:
        self._phase, self._depth, self._name = _Phase.OUTSIDE, 0, b""
        self._top = self._inner = self._escaped = False

    def feed(self, data: bytes) -> bytes:
        """Return the next piece as the client gets it; may be longer, shorter or empty."""
        out: list[bytes] = []
        kept = at = 0
        while at < len(data):
            phase = self._phase
            if phase is _Phase.PASSED:
                at = data.find(b"\n", at) + 1 if self._events else 0
                if not at:
                    break
                self._begin()
            elif phase is _Phase.OUTSIDE and not self._depth and (usual := self._usual.match(data, at)):
                out += (data[kept : usual.start(1)], self._model)
                kept, at, self._phase = usual.end(1), usual.end(), _Phase.PASSED
            elif phase is _Phase.OUTSIDE:
                at = self._outside(data, at)
            elif phase is _Phase.NAMED or phase is _Phase.VALUED:
                at = self._between(data, at)
                if self._phase is _Phase.MODEL:
                    out += (data[kept:at], self._model)
                    kept = at
            else:
                at = self._inside(data, at)
                if phase is _Phase.MODEL:
                    # What ended the value goes on; while nothing has, all of it is dropped.
                    kept = at if self._phase is _Phase.MODEL else at - 1
        out.append(data[kept:])
        return b"".join(out)

    def _outside(self, data: bytes, at: int) -> int:
        found = self._tokens.search(data, at)
        if found is None:
            return len(data)
        token = data[found.start()]
        if token == _QUOTE:
            wanted = (self._depth == 1 and self._top) or (self._depth == 2 and self._inner)
            self._phase, self._name = (_Phase.NAME if wanted else _Phase.TEXT), b""
        elif token == _LINE_FEED:
            self._begin()
        elif token in _OPENING:
            self._depth += 1
            if self._depth == 1:
                self._top = token == _OPENING[0]
        else:
            self._depth -= 1
            self._inner = self._inner and self._depth > 1
        return found.end()

    def _inside(self, data: bytes, at: int) -> int:
        """Read a string up to what ends it, an escaped character, or the end of the piece."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = self._text.search(data, at)
        stop = len(data) if found is None else found.start()
        if self._phase is _Phase.NAME:
            self._name += data[at : min(stop, at + _LONGEST_NAME + 1)]
            if len(self._name) > _LONGEST_NAME:
                self._phase = _Phase.TEXT
        if found is None:
            return stop
        token = data[stop]
        if token == _BACKSLASH:
            self._escaped = True
            self._phase = _Phase.TEXT if self._phase is _Phase.NAME else self._phase
        elif token == _LINE_FEED:
            self._begin()
        elif self._phase is _Phase.MODEL:
            self._phase = _Phase.PASSED
        elif self._phase is _Phase.NAME and (
            self._name == _MODEL or (self._depth == 1 and self._name in _HOLDERS)
        ):
            self._phase = _Phase.NAMED
        else:
            self._phase = _Phase.OUTSIDE
        return found.end()

    def _between(self, data: bytes, at: int) -> int:
        """Read one byte behind a name: white space, colon or the beginning of the value."""
        byte = data[at]
        if byte in _SPACE or (byte == _LINE_FEED and not self._events):
            return at + 1
        if self._phase is _Phase.NAMED and byte == _COLON:
            self._phase = _Phase.VALUED
            return at + 1
        model = self._name == _MODEL
        if self._phase is _Phase.VALUED and model and byte == _QUOTE:
            self._phase = _Phase.MODEL
            return at + 1
        if self._phase is _Phase.VALUED and not model and byte == _OPENING[0]:
            self._inner = True
        self._phase = _Phase.OUTSIDE
        return at


def restorer(model: str, headers: Headers) -> ModelRestorer | None:
    """Return what restores the model in an answer with these headers; None where it cannot be read.

    Args:
        model: the name that the client knows.
        headers: the response's, names lower-cased.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        return None
    kind = headers.get("content-type", "").lower()
    if any(name in kind for name in _LINES):
        return ModelRestorer(model, events=True)
    return ModelRestorer(model, events=False) if "json" in kind else None
