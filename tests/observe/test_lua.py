"""The filter's script on LuaJIT, as Envoy runs it: what it finds, in any cut, and against Python's reader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lupa import luajit21  # type: ignore[import-untyped]  # it has no stubs

from epp.apis.events import LINE_BYTES
from epp.apis.failure import MODEL_NOT_FOUND, AnswerFailure
from epp.apis.usage import Usage
from epp.envoy.observe import script
from epp.envoy.settings import EnvoySettings
from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.request.access_log import decode
from tests.observe import answers
from tests.observe.entries import entry, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.request.access_log import Report

TAIL_BYTES = 2048
SOURCE = script(EnvoySettings(endpoints=()))
HEAD = "EnvoyTimestampResolution = { MICROSECOND = 1 }\n"
HARNESS = b"""
function(pieces, kind, encoding, status)
  local notes, calls, read, paths = {}, {}, 0, {}
  local handle = {}
  function handle:streamInfo()
    return { dynamicMetadata = function() return {
      get = function() return { decision_id = "d" } end,
      set = function(_, _, key, value) notes[key] = value end,
    } end }
  end
  function handle:headers()
    local headers = { [":status"] = status, ["content-type"] = kind, ["content-encoding"] = encoding }
    return { get = function(_, name) return headers[name] end }
  end
  function handle:timestampString() return tostring(read) end
  function handle:httpCall(_, headers) calls[#calls + 1], paths[#paths + 1] = read, headers[":path"] end
  function handle:logErr(text) error(text) end
  function handle:bodyChunks()
    return function()
      if read >= #pieces then return nil end
      read = read + 1
      local data = pieces[read]
      return {
        length = function() return #data end,
        getBytes = function(_, from, count) return data:sub(from + 1, from + count) end,
      }
    end
  end
  envoy_on_response(handle)
  return notes, calls, read, paths
end
"""


@dataclass
class Seen:
    notes: dict[str, Any]
    calls: list[int]
    read: int
    paths: list[str]

    def report(self, status: int = 200) -> Report:
        """As the picker reads it, by way of the access log."""
        logged = StreamAccessLogsMessage.FromString(wire(entry(seen=self.notes, status=status))).http_logs
        return decode(logged.log_entry[0])

    @property
    def usage(self) -> Usage:
        return self.report().usage


class Lua:
    def __init__(self) -> None:
        self._lua = luajit21.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._lua.execute((HEAD + SOURCE).encode())
        self._run = self._lua.eval(HARNESS)

    def __call__(
        self,
        pieces: Sequence[bytes],
        kind: bytes = b"text/event-stream",
        encoding: bytes | None = None,
        status: bytes = b"200",
    ) -> Seen:
        notes, calls, read, paths = self._run(self._lua.table_from(list(pieces)), kind, encoding, status)
        plain = {
            key.decode(): value.decode("utf-8") if isinstance(value, bytes) else value
            for key, value in notes.items()
        }
        return Seen(plain, list(calls.values()), read, [path.decode() for path in paths.values()])


LUA = Lua()


def named(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + answers.event({"type": kind, **fields})


CHAT = (
    answers.token('say "usage": {"prompt_tokens": 99} n\u00e9 \u4f60\u597d [DONE]')
    + answers.usage({**answers.USAGE, "x": '}{\\"\u4f60'})
    + answers.DONE
)
CONTINUOUS = (
    b"".join(
        answers.event(
            {"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 9, "completion_tokens": at}}
        )
        for at in range(1, 6)
    )
    + answers.DONE
)
ANTHROPIC = (
    named(
        "message_start",
        message={"usage": {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 1}},
    )
    + named("ping")
    + named("content_block_delta", delta={"text": 'x "usage": {"input_tokens": 5} message_stop'})
    + b"".join(named("content_block_delta", delta={"text": "word " * 40}) for _ in range(30))
    + named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 44})
    + named("message_stop")
)
ANSWERED = {"output": [{"content": [{"text": "word " * 2000}]}]}
RESPONSES = (
    named("response.created", response={"usage": None})
    + named("response.output_text.delta", delta="response.completed")
    + named(
        "response.completed",
        response={
            **ANSWERED,
            "usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 4},
            "metadata": {"note": "y" * 3 * TAIL_BYTES},
        },
    )
)
SGLANG = (
    b"".join(
        answers.event(
            {
                "text": "a",
                "meta_info": {
                    "id": f"p{at % 2}",
                    "prompt_tokens": 7,
                    "completion_tokens": at // 2 + 1,
                    "cached_tokens": 3,
                },
            }
        )
        for at in range(6)
    )
    + answers.DONE
)
STREAMS = {
    "chat": (CHAT, Usage(1200, 5, 1024)),
    "continuous": (CONTINUOUS, Usage(9, 5, None)),
    "anthropic": (ANTHROPIC, Usage(20, 44, 16)),
    "responses": (RESPONSES, Usage(20, 4, 16)),
    "sglang": (SGLANG, Usage(14, 6, 6)),
}
FEW = settings(max_examples=30)
EACH = pytest.mark.parametrize(("body", "expected"), STREAMS.values(), ids=STREAMS)


def cuts(body: bytes) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.integers(0, len(body)), max_size=12).map(
        lambda places: [body[a:b] for a, b in pairwise([0, *sorted(places), len(body)])]
    )


@EACH
@given(data=st.data())
@FEW
def test_a_stream_is_complete_with_its_last_event_though_the_connection_stays(
    body: bytes, expected: Usage, data: st.DataObject
) -> None:
    pieces = [piece for piece in data.draw(cuts(body)) if piece]
    seen = LUA([*pieces, b": still here\n\n"])
    assert seen.read == len(pieces)
    assert (seen.notes["chunks"], seen.usage) == (len(pieces), expected)


@pytest.mark.parametrize(
    "body",
    [CHAT[: -len(answers.DONE)], ANTHROPIC[:-4], b"data: x [DONE]\n\n", b'"[DONE]"\n\n'],
)
def test_before_its_last_event_it_is_not(body: bytes) -> None:
    assert LUA([body, b": still here\n\n", b"\n"]).read == 3


WHOLE = (
    b'{"choices": [{"message": {"content": "'
    + b"w" * 5000
    + b'"}}], "usage": '
    + json.dumps(answers.USAGE).encode()
)


@FEW
@given(data=st.data(), after=st.integers(0, 9000))
def test_a_whole_answer_tells_its_usage_wherever_it_stands(data: st.DataObject, after: int) -> None:
    body = WHOLE + b', "prompt_logprobs": "' + b"z" * after + b'"}'
    seen = LUA(data.draw(cuts(body)), b"application/json")
    assert (seen.usage, seen.calls, seen.notes["streamed"]) == (Usage(1200, 5, 1024), [], False)


STORED = named("response.created", response={"id": "resp_0-a", "object": "response"}) + RESPONSES


@FEW
@given(st.data())
def test_the_id_of_a_response_is_told_at_once_and_in_the_log_however_it_is_cut(data: st.DataObject) -> None:
    seen = LUA(data.draw(cuts(STORED)))
    assert seen.notes["response_id"] == "resp_0-a"
    assert seen.paths == ["/stored/d/resp_0-a", "/first-token/d"]
    body = b'{"previous_response_id": "resp_9", "id" :\n"resp_1", "usage": {"input_tokens": 1}, "x": {"id": "resp_2"}}'
    assert LUA(data.draw(cuts(body)), b"application/json").paths == ["/stored/d/resp_1"]
    later = b'{"output": "' + b"x" * LINE_BYTES + b'", "id": "resp_1"}'
    assert LUA(data.draw(cuts(later)), b"application/json").paths == []


@given(st.data())
def test_comments_are_no_tokens_however_they_are_cut(data: st.DataObject) -> None:
    waiting = b": wait\n\n: keep-alive\r\n\r\n\n"
    pieces = [piece for piece in data.draw(cuts(waiting)) if piece]
    assert LUA([*pieces, answers.token("a"), answers.DONE]).calls == [len(pieces) + 1]
    assert LUA([waiting + answers.token("a"), answers.DONE]).calls == [1], "a token behind a comment is one"
    assert LUA(pieces).calls == []


def test_what_cannot_be_read_is_looked_at_once() -> None:
    seen = LUA([b"\x1f\x8b", b"more", b"more"], encoding=b"gzip")
    assert (seen.read, seen.calls, seen.notes["encoding"]) == (1, [1], "gzip")
    assert "usage" not in seen.notes


NO_MODEL = json.dumps({"object": "error", "message": "The model `x` does not exist.", "code": 404}).encode()


@FEW
@given(st.data())
def test_what_an_engine_says_of_a_refusal_is_noted_however_it_is_cut(data: st.DataObject) -> None:
    seen = LUA(data.draw(cuts(NO_MODEL)), b"application/json", status=b"404")
    assert seen.report(404).failure == AnswerFailure(404, MODEL_NOT_FOUND)
    long = LUA(
        data.draw(cuts(NO_MODEL[:-1] + b" " * 3 * LINE_BYTES + b"}")), b"application/json", status=b"404"
    )
    assert len(long.notes["failure"]) == LINE_BYTES
    assert "failure" not in LUA([b"<html>"], b"text/html", status=b"404").notes


def test_names_within_names_that_nobody_closes_are_not_walked_to_the_end_for_each() -> None:
    """A whole body may echo what its client sent; Envoy's worker serves nobody else meanwhile."""
    lua = Lua()
    counts = lua._lua.execute(b"""
        jit.off()
        local count = 0
        debug.sethook(function() count = count + 1 end, "", 100)
        return function() local so_far = count; count = 0; return so_far end
    """)
    found = []
    for nested in (2000, 4000, 8000):
        counts()
        lua([b'{"tools":' + b'{"usage":' * nested], kind=b"application/json")
        found.append(counts())
    assert found[2] - found[1] < 3 * (found[1] - found[0]), "work grows with the body, not with its square"
