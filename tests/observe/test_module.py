"""The filter's compiled part: it finds what the script finds, in any cut, and nothing makes it stumble."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.cli import main
from epp.envoy.module import build, build_scan
from epp.errors import EppError
from tests.kit.envoy import require_compiler
from tests.observe import answers
from tests.observe.test_lua import ANTHROPIC, CHAT, EACH, FEW, LUA, STREAMS, TAIL_BYTES, WHOLE, cuts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epp.prompt.usage import Usage


class Native:
    """One answer through the compiled reader."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.epp_scan_new.restype = ctypes.c_void_p
        library.epp_scan_new.argtypes = [ctypes.c_size_t, ctypes.c_bool]
        library.epp_scan_free.argtypes = [ctypes.c_void_p]
        library.epp_scan_add.restype = None
        library.epp_scan_add.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        library.epp_scan_end.restype = ctypes.c_bool
        library.epp_scan_end.argtypes = [ctypes.c_void_p]
        for counted in (library.epp_scan_pieces, library.epp_scan_room, library.epp_scan_usage):
            counted.restype, counted.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
        library.epp_scan_usage.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]

    def __call__(self, pieces: Sequence[bytes], *, streamed: bool = True) -> tuple[str | None, int]:
        """Usage as noted, and pieces read until the answer was complete."""
        scan = self._library.epp_scan_new(TAIL_BYTES, streamed)
        for piece in pieces:
            self._library.epp_scan_add(scan, piece, len(piece))
        read = len(pieces)
        if self._library.epp_scan_end(scan):  # empty pieces are none
            read = [at for at, piece in enumerate(pieces, 1) if piece][
                self._library.epp_scan_pieces(scan) - 1
            ]
        room = self._library.epp_scan_room(scan)
        found = ctypes.create_string_buffer(room)
        length = self._library.epp_scan_usage(scan, found, room)
        self._library.epp_scan_free(scan)
        return found.raw[:length].decode("ascii") or None, read


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    library: Path = tmp_path_factory.mktemp("module") / "scan.so"
    require_compiler()
    build_scan(library)
    return Native(ctypes.CDLL(str(library)))


def as_told(usage: object) -> list[str]:
    """The script tells a batch in any order."""
    return sorted(str(usage).replace('"meta_info"', "\n").split("\n"))


def same(native: Native, pieces: Sequence[bytes], *, streamed: bool = True) -> None:
    lua = LUA(pieces, b"text/event-stream" if streamed else b"application/json")
    usage, read = native(pieces, streamed=streamed)
    assert as_told(usage) == as_told(lua.notes.get("usage"))
    assert read == lua.read


@EACH
@given(data=st.data())
@FEW
def test_it_finds_what_the_script_finds(
    native: Native, body: bytes, expected: Usage, data: st.DataObject
) -> None:
    pieces = data.draw(cuts(body))
    same(native, [*pieces, b": still here\n\n"])
    assert LUA(pieces).usage == expected
    for streamed in (True, False):
        same(native, pieces, streamed=streamed)


@EACH
def test_every_single_cut(native: Native, body: bytes, expected: Usage) -> None:
    del expected
    for at in range(max(len(body) - 300, 0), len(body)):
        same(native, [body[:at], body[at:], b"more"])
    same(native, [bytes([byte]) for byte in body[-1500:]])


@pytest.mark.parametrize(
    "body",
    [
        CHAT[: -len(answers.DONE)],
        ANTHROPIC[:-4],
        b"data: x [DONE]\n\n",
        b'"[DONE]"\n\n',
        b"data:[DONE]\n\n",
        b"data:  [DONE]\n\n",
        b"data: [DONE]\r\n\r\n",
        b"[DONE]\n\n",
        b'{"type" : "message_stop"}\n\n',
        b'{"type":"response.failed"}\n\n',
        b'{"type":"response.failed}\n\n',
    ],
)
def test_ends_that_are_ends_and_ends_that_are_none(native: Native, body: bytes) -> None:
    for at in range(len(body)):
        same(native, [piece for piece in (body[:at], body[at:], b": still here\n\n", b"\n") if piece])


PARTS = st.sampled_from(
    [b'"usage"', b'"meta_info"', b":", b"{", b"}", b'"', b"\\", b" ", b"\n", b"\r\n", b'"id":"a"', b'"id" : "b"',
     b'"prompt_tokens":7', b'"max_tokens" : 7', b'_tokens":', b'"cached_tokens":"7"', b'"type":"', b'message_stop"', b"data: [DONE]", b'response.completed"', b"x" * 700, b"\x00", b"\xff"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=60).map(b"".join), st.data(), st.booleans())
def test_pieces_of_json_in_any_order(
    native: Native, body: bytes, data: st.DataObject, streamed: bool
) -> None:
    same(native, data.draw(cuts(body)), streamed=streamed)


@given(st.data(), st.binary(max_size=300), st.integers(0, 3 * TAIL_BYTES))
@FEW
def test_garbage(native: Native, data: st.DataObject, garbage: bytes, length: int) -> None:
    body = garbage + b'"usage": {"n": "' + b"x" * length + b'", "prompt_tokens": 5}' + garbage
    same(native, data.draw(cuts(body)), streamed=False)


@pytest.mark.parametrize("prompts", [1, 16, 17, 40])
def test_a_batch(native: Native, prompts: int) -> None:
    told = b"".join(b'{"meta_info": {"id": "p%d", "prompt_tokens": 2}}' % at for at in range(prompts))
    same(native, [told, told], streamed=False)


def test_an_answer_of_names_alone_takes_no_longer_than_its_length(native: Native) -> None:
    body = b'"usage":{' * 200_000
    assert native([body[:1_000_000], body[1_000_000:]], streamed=False)[0] is None


def test_usage_is_the_last_one_of_a_whole_answer(native: Native) -> None:
    usage, _ = native([WHOLE + b', "prompt_logprobs": "' + b"z" * 5000 + b'"}'], streamed=False)
    assert usage is not None
    assert '"prompt_tokens": 1200' in usage


def test_the_streams_are_those_of_the_script() -> None:
    assert set(STREAMS) >= {"chat", "anthropic", "responses", "sglang"}


def test_the_command_builds_what_envoy_loads(tmp_path: Path) -> None:
    library = tmp_path / "libepp_observe.so"
    assert main(["envoy", "module", "--out", str(library)]) == 0
    assert b"envoy_dynamic_module_on_program_init" in library.read_bytes()


@pytest.mark.parametrize("compiler", ["false", "/nonexistent/cc"])
def test_a_compiler_that_fails_is_told_of(tmp_path: Path, compiler: str) -> None:
    with pytest.raises(EppError):
        build(tmp_path / "module.so", compiler)
