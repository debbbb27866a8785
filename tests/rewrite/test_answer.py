"""The public model name in answers, by both machines: `epp.apis.rewrite` and the Lua filter."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import luajit21  # type: ignore[import-untyped]  # it has no stubs

import epp.envoy
from epp.apis.rewrite import ModelRestorer, restorer

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLIC = 'chat "größer" \\ 模型'
SOURCE = Path(epp.envoy.__file__).with_name("restore_model.lua").read_text()


def python(pieces: Sequence[bytes], events: bool) -> bytes:
    machine = ModelRestorer(PUBLIC, events=events)
    return b"".join(machine.feed(piece) for piece in pieces)


class Lua:
    """The script as Envoy runs it, on LuaJIT, with a handle whose chunks are these."""

    def __init__(self) -> None:
        self._lua = luajit21.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._lua.execute(b'local DECISION_NAMESPACE = "epp"\n' + SOURCE.encode())
        self._run = self._lua.eval(_HARNESS)

    def __call__(self, pieces: Sequence[bytes], events: bool) -> bytes:
        kind = b"text/event-stream" if events else b"application/json"
        return self.answer(pieces, {b"content-type": kind, b"content-length": b"1"})[0]

    def answer(
        self, pieces: Sequence[bytes], headers: dict[bytes, bytes], public: bytes | None = PUBLIC.encode()
    ) -> tuple[bytes, bool]:
        """What comes out, and whether content-length is still there."""
        table = self._lua.table_from
        body, length = self._run(table(list(pieces)), table(headers), public)
        return body, length is not None


_HARNESS = b"""
function(pieces, headers, public)
  local out, index = {}, 0
  local handle = {}
  function handle:streamInfo()
    return { dynamicMetadata = function() return { get = function() return { model_public = public } end } end }
  end
  function handle:headers()
    return {
      get = function(_, name) return headers[name] end,
      remove = function(_, name) headers[name] = nil end,
    }
  end
  function handle:bodyChunks()
    return function()
      index = index + 1
      local data = pieces[index]
      if not data then return nil end
      out[index] = data
      local here = index
      return {
        length = function() return #data end,
        getBytes = function(_, from, count) return data:sub(from + 1, from + count) end,
        setBytes = function(_, bytes) out[here] = bytes end,
      }
    end
  end
  envoy_on_response(handle)
  for rest = index + 1, #pieces do out[rest] = pieces[rest] end
  return table.concat(out), headers["content-length"]
end
"""

LUA = Lua()
MACHINES = pytest.mark.parametrize("machine", [python, LUA], ids=["python", "lua"])


def event(fields: object, **options: Any) -> bytes:
    return b"data: " + json.dumps(fields, **options).encode() + b"\n\n"


def chat(text: str, model: str = "served/llama-3") -> dict[str, Any]:
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": model,
            "choices": [{"index": 0, "delta": {"content": text}}], "usage": None}  # fmt: skip


CHAT = (
    b"".join(event(chat(text)) for text in ("a", 'say "model": "x"', "né 你好\n", "{[}"))
    + b"data: [DONE]\n\n"
)
ANTHROPIC = b"".join(
    b"event: " + str(fields["type"]).encode() + b"\n" + event(fields, separators=(",", ":"))
    for fields in (
        {"type": "message_start", "message": {"id": "m", "content": [], "model": "s", "usage": {"input_tokens": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"model":"s"}'}},
        {"type": "message_stop"},
    )
)  # fmt: skip
WHOLE: list[tuple[object, tuple[tuple[str, ...], ...]]] = [
    ({"id": 1, "model": "s", "choices": [{"message": {"content": '"model":"s"', "model": "s"}}]}, (("model",),)),
    ({"type": "message", "message": {"content": [{"model": "s"}], "model": "s"}}, (("message", "model"),)),
    ({"type": "response.created", "response": {"metadata": {"model": "s"}, "model": "s"}}, (("response", "model"),)),
    ({"message": "model", "object": "model", "response": ["model"], "model": "s"}, (("model",),)),
    ({"model": None, "x": {"model": "s"}}, ()),
    ([{"model": "s"}], ()),
]  # fmt: skip


def cuts(body: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def restored_tree(tree: Any, paths: Sequence[Sequence[str]]) -> Any:
    tree = json.loads(json.dumps(tree))
    for path in paths:
        inner = tree
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = PUBLIC
    return tree


@MACHINES
@pytest.mark.parametrize(("tree", "paths"), WHOLE)
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"ensure_ascii": False, "separators": (",", ":")}])
def test_whole_bodies(machine: Any, tree: object, paths: tuple[tuple[str, ...], ...], options: Any) -> None:
    body = json.dumps(tree, **options).encode()
    out = machine([body], False)
    assert json.loads(out) == restored_tree(tree, paths)
    if not paths:
        assert out == body
    assert machine([bytes([byte]) for byte in body], False) == out


@MACHINES
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_event_streams_in_pieces(machine: Any, size: int) -> None:
    name = json.dumps(PUBLIC, ensure_ascii=False).encode()
    for body, served in ((CHAT, b'"model": "served/llama-3"'), (ANTHROPIC, b'"model":"s","usage"')):
        wanted = body.replace(served, served.replace(b'"served/llama-3"', name).replace(b'"s"', name))
        assert wanted != body
        assert machine([body[at : at + size] for at in range(0, len(body), size)], True) == wanted


@MACHINES
def test_nothing_is_held_back(machine: Any) -> None:
    body = b'{"id": 1, "model": "served", "choices": []}'
    quoted = json.dumps(PUBLIC, ensure_ascii=False).encode()
    value = body.index(b'"served"') + 1
    for end in range(len(body)):
        before = (
            body[:end] if end < value else body[: value - 1] + quoted[:-1] + body[value + len("served") : end]
        )
        assert machine([body[:end]], False) == before


FRAGMENTS = st.sampled_from(
    [b'"model"', b'"message"', b'"response"', b":", b" ", b"\n", b'"s"', b"{", b"}", b"[", b"]", b",", b"\\", b'"',
     b'"\\""', b"data: ", b"1"]
)  # fmt: skip


@given(
    st.lists(FRAGMENTS, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=8), st.booleans()
)
def test_both_machines_are_one(body: bytes, at: list[int], events: bool) -> None:
    pieces = cuts(body, [min(cut, len(body)) for cut in at])
    assert LUA(pieces, events) == python(pieces, events) == python([body], events)


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        ({"content-type": "application/json; charset=utf-8"}, True),
        ({"content-type": "Text/Event-Stream"}, True),
        ({"content-type": "application/json", "content-encoding": "identity"}, True),
        ({"content-type": "application/json", "content-encoding": "gzip"}, False),
        ({}, False),
    ],
)
def test_which_answers_are_read(headers: dict[str, str], read: bool) -> None:
    assert (restorer(PUBLIC, headers) is not None) is read
    raw = {name.encode(): value.encode() for name, value in headers.items()} | {b"content-length": b"9"}
    body, length_stays = LUA.answer([b'{"model":"s"}'], raw)
    assert length_stays is not read
    assert (body != b'{"model":"s"}') is read


def test_answers_of_requests_that_went_on_as_they_came_are_not_touched() -> None:
    kind = {b"content-type": b"application/json", b"content-length": b"13"}
    assert LUA.answer([b'{"model":"s"}'], kind, public=None) == (b'{"model":"s"}', True)
