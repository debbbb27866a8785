"""Answers as engines send them: filter, full-duplex reader and buffered reader come to one verdict on each.

`recorded/` holds a file for each: llama.cpp's are recorded, the others written as the engines' sources do, with
the white space and the order of members that those have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.failure import AnswerFailure
from epp.apis.usage import NO_USAGE, AnswerWatch, Usage
from tests.observe.test_lua import LUA, cuts

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).with_name("recorded")
TOLD, PARTLY = Usage(20, 3, 16), Usage(20, 3, None)
ABORTED = AnswerFailure(500, "abort")


@dataclass(frozen=True)
class Verdict:
    """What is to be found in an answer.

    Attributes:
        first: in the event that is its first content, ``""`` where it has none; of a whole answer nothing.
        usage, failure, model: as the readers tell them.
        ends: whether its last event says that it is the last.
    """

    first: str = ""
    usage: Usage = NO_USAGE
    failure: AnswerFailure | None = None
    model: str = "m"
    ends: bool = True


STREAMS = {
    "vllm-chat": Verdict("he said", TOLD),
    "vllm-chat-reasoning": Verdict("Hm", TOLD),
    "vllm-chat-tool": Verdict('"report"'),
    "vllm-chat-error": Verdict(failure=AnswerFailure(500, "InternalServerError"), model=""),
    "vllm-chat-error-late": Verdict('"a"', failure=AnswerFailure(500, "InternalServerError")),
    "vllm-chat-abort": Verdict('"a"', failure=ABORTED),
    "vllm-chat-empty": Verdict(),
    "vllm-chat-old-error": Verdict(failure=AnswerFailure(500, "InternalServerError"), model=""),
    "vllm-completions": Verdict('"a"', TOLD),
    "vllm-responses": Verdict('"delta":"a"', TOLD, model=""),  # behind long instructions
    "vllm-responses-tool": Verdict("call_1", TOLD, model=""),
    "vllm-messages": Verdict("an ", TOLD),
    "vllm-messages-error": Verdict(failure=AnswerFailure(500, "internal_error"), model=""),
    "vllm-generate": Verdict("[5]", TOLD, model=""),
    "openai-chat-audio": Verdict('"data"', TOLD),
    "openai-responses-error": Verdict(failure=AnswerFailure(429, "rate_limit_exceeded")),
    "openai-responses-image": Verdict("iVBOR", TOLD),
    "openrouter-chat-error": Verdict(failure=AnswerFailure(502, ""), ends=False),
    "anthropic-messages-thinking": Verdict("Hm", TOLD),
    "anthropic-messages-tool": Verdict("tool_use", TOLD),
    "anthropic-messages-redacted": Verdict("EmwK", TOLD),
    "litellm-messages": Verdict('"a"', TOLD),
    "anthropic-messages-overloaded": Verdict(failure=AnswerFailure(529, "overloaded_error")),
    "sglang-chat": Verdict("Hm", TOLD),
    "sglang-chat-error": Verdict(failure=AnswerFailure(503, "SERVICE_UNAVAILABLE"), model=""),
    "sglang-generate": Verdict("[5]", Usage(10, 2, 8), model=""),
    "sglang-generate-batch": Verdict('"a"', Usage(20, 4, 16), model=""),
    "sglang-generate-abort": Verdict(failure=AnswerFailure(400, "abort"), model=""),
    "sglang-generate-error": Verdict(failure=AnswerFailure(400, ""), model=""),
    "tgi-chat": Verdict('"a"', PARTLY),
    "tgi-chat-error": Verdict(failure=AnswerFailure(500, ""), model=""),
    "tgi-generate-overloaded": Verdict(failure=AnswerFailure(529, "overloaded"), model="", ends=False),
    "trtllm-chat": Verdict('"a"', TOLD),
    "lmdeploy-chat-error": Verdict(failure=AnswerFailure(500, "error")),
    "lmdeploy-responses-failed": Verdict(failure=AnswerFailure(500, "server_error")),
    "dynamo-chat-error": Verdict('"a"', failure=AnswerFailure(500, ""), ends=False),
    "llama.cpp-chat": Verdict('"content":"', Usage(14, 3, 0), model="tiny"),
    "llama.cpp-chat-progress": Verdict('"content":"', model="tiny"),
    "llama.cpp-completions": Verdict('"text":"', Usage(2, 3, 0), model="tiny"),
    "llama.cpp-responses": Verdict('"delta":', Usage(14, 3, 13), model=""),
    "llama.cpp-messages": Verdict('"text_delta"', Usage(14, 3, 13), model="tiny"),
    "llama.cpp-completion": Verdict('"content":"endpoint"', Usage(41, 3, 0), model="", ends=False),
    "llama.cpp-completion-batch": Verdict('"content":"erv"', Usage(43, 4, 41), model="", ends=False),
}
WHOLE = {
    "vllm-chat": Verdict("", TOLD),
    "vllm-chat-abort": Verdict(failure=ABORTED),
    "vllm-chat-error": Verdict(failure=AnswerFailure(500, "InternalServerError"), model=""),
    "vllm-generate": Verdict("", TOLD, model=""),
    "vllm-messages": Verdict("", TOLD),
    "vllm-responses": Verdict("", TOLD),
    "anthropic-messages-tool": Verdict("", TOLD),
    "sglang-generate-stop": Verdict("", Usage(10, 2, 8), model=""),
    "openai-responses-failed": Verdict(failure=AnswerFailure(500, "server_error"), model=""),
    "lmdeploy-chat-error": Verdict(failure=AnswerFailure(503, "server_error"), model=""),
    "sglang-chat-error": Verdict(failure=AnswerFailure(503, "ServiceUnavailableError"), model=""),
    "sglang-generate": Verdict("", Usage(10, 2, 8), model=""),
    "sglang-generate-abort": Verdict(failure=ABORTED, model=""),
    "llama.cpp-chat": Verdict("", Usage(14, 3, 13), model="tiny"),
    "llama.cpp-completions": Verdict("", Usage(2, 3, 1), model="tiny"),
    "llama.cpp-responses": Verdict("", Usage(14, 3, 13), model="tiny"),
    "llama.cpp-messages": Verdict("", Usage(14, 3, 13), model="tiny"),
    "llama.cpp-completion": Verdict("", Usage(41, 3, 40), model="tiny"),
    "llama.cpp-completion-batch": Verdict("", Usage(43, 4, 41), model="tiny"),
}


def by_picker(pieces: Sequence[bytes], kind: str) -> tuple[int, Usage, AnswerFailure | None, str, bool]:
    """Which piece brings the first content, counted from 1, or 0, and what else the picker reads."""
    watch = AnswerWatch()
    watch.started(200, {"content-type": kind})
    firsts = [number for number, piece in enumerate(pieces, 1) if watch.feed(piece, 0.0)]
    assert len(firsts) <= 1
    failure = watch.failure()
    usage = NO_USAGE if failure else watch.usage()
    return sum(firsts), usage, failure, watch.model(), watch.has_last_event()


def by_filter(pieces: Sequence[bytes], kind: str) -> tuple[int, Usage, AnswerFailure | None, str, bool]:
    """Likewise, what Envoy's filter finds, as the picker reads it in the log."""
    more = b": still here\n\n"
    seen = LUA([*pieces, more], kind.encode())
    report = seen.report()
    return (
        int(seen.notes.get("first_us", 0)),
        report.usage,
        report.failure,
        report.model,
        seen.read == len(pieces),
    )


def expected(
    answer: bytes, pieces: Sequence[bytes], verdict: Verdict
) -> tuple[int, Usage, AnswerFailure | None, str]:
    """Which piece ends the event of the first content, counted from 1, or 0, and the rest."""
    if not verdict.first:
        return 0, verdict.usage, verdict.failure, verdict.model
    ends = answer.index(b"\n", answer.index(verdict.first.encode()))
    at = first = 0
    while at <= ends:
        at += len(pieces[first])
        first += 1
    return first, verdict.usage, verdict.failure, verdict.model


def check_stream(answer: bytes, pieces: Sequence[bytes], verdict: Verdict) -> None:
    pieces = [piece for piece in pieces if piece]
    found = expected(answer, pieces, verdict)
    assert by_picker(pieces, "text/event-stream") == (*found, verdict.ends)
    assert by_filter(pieces, "text/event-stream") == (*found, verdict.ends)


def test_every_recording_has_a_verdict() -> None:
    names = {f"{name}.sse" for name in STREAMS} | {f"{name}.json" for name in WHOLE}
    assert names == {path.name for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_alike_by_all_in_one_piece_and_byte_by_byte(name: str) -> None:
    answer = (FOLDER / f"{name}.sse").read_bytes()
    check_stream(answer, [answer], STREAMS[name])
    check_stream(answer, [answer[at : at + 1] for at in range(len(answer))], STREAMS[name])


@given(name=st.sampled_from(sorted(STREAMS)), data=st.data())
def test_no_cut_of_a_stream_changes_the_verdict(name: str, data: st.DataObject) -> None:
    answer = (FOLDER / f"{name}.sse").read_bytes()
    check_stream(answer, data.draw(cuts(answer)), STREAMS[name])


def check_whole(name: str, pieces: Sequence[bytes]) -> None:
    verdict = WHOLE[name]
    found = (1, verdict.usage, verdict.failure, verdict.model)
    assert by_picker(pieces, "application/json")[:-1] == found
    assert by_filter(pieces, "application/json")[:-1] == found


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer_is_read_alike_by_all(name: str) -> None:
    check_whole(name, [(FOLDER / f"{name}.json").read_bytes()])


@given(name=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_no_cut_of_a_whole_answer_changes_the_verdict(name: str, data: st.DataObject) -> None:
    answer = (FOLDER / f"{name}.json").read_bytes()
    check_whole(name, [piece for piece in data.draw(cuts(answer)) if piece])


def test_a_failure_long_before_the_end_is_found() -> None:
    content = (FOLDER / "vllm-chat.sse").read_bytes()
    failed = (FOLDER / "sglang-chat-error.sse").read_bytes()
    pieces = [*[content] * 30, failed, *[content] * 60]
    assert by_picker(pieces, "text/event-stream")[2] == AnswerFailure(503, "SERVICE_UNAVAILABLE")
