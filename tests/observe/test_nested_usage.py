"""Objects called ``usage`` beside the answer's own: script and picker read the same."""

from __future__ import annotations

import json

import pytest

from epp.apis.usage import AnswerWatch, Usage
from tests.observe import answers
from tests.observe.test_lua import LUA

OWN = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 4}
#: A tool's parameter of that name, as JSON Schema has it.
PARAMETER = {
    "type": "object",
    "properties": {"prompt_tokens": {"type": "integer"}},
    "default": {"max_tokens": 5},
}
#: What a client or a model may call usage without counting anything.
COUNTLESS = {
    "parameter": {"usage": PARAMETER},
    "empty": {"usage": {}},
    "null": {"usage": None},
    "another count": {"usage": {"max_tokens": 5, "tokens": 3}},
    "words": {"usage": {"prompt_tokens": "7", "note": '"prompt_tokens": 5', "completion_tokens": None}},
    "truth": {"usage": {"completion_tokens": True}},
}


def read(body: bytes, *, streamed: bool) -> list[Usage]:
    """As the picker reads it, as the script finds it; cut in every place."""
    kind = "text/event-stream" if streamed else "application/json"
    found = []
    for at in range(0, len(body), 7):
        pieces = [piece for piece in (body[:at], body[at:]) if piece]
        watch = AnswerWatch()
        watch.started(200, {"content-type": kind})
        for piece in pieces:
            watch.feed(piece, 0.0)
        found += [watch.usage(), LUA(pieces, kind.encode()).usage]
    return found


@pytest.mark.parametrize("other", COUNTLESS.values(), ids=COUNTLESS)
@pytest.mark.parametrize("behind", [True, False])
def test_one_without_counts_hides_nothing(other: object, behind: bool) -> None:
    fields = {"usage": OWN, "tools": [other]} if behind else {"tools": [other], "usage": OWN}
    body = json.dumps({"id": "r", **fields}).encode()
    assert set(read(body, streamed=False)) == {Usage(20, 4, 16)}
    event = answers.event({"type": "response.completed", "response": fields})
    begun = answers.event({"type": "response.created", "response": {"usage": None, "tools": [other]}})
    assert set(read(begun + event, streamed=True)) == {Usage(20, 4, 16)}


def test_of_those_with_counts_the_last_of_a_whole_answer_is_taken() -> None:
    """Wrongly so where it is another's: docs/apis.md says why."""
    other = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    front = json.dumps({"tools": [other], "usage": OWN}).encode()
    assert set(read(front, streamed=False)) == {Usage(20, 4, 16)}
    behind = json.dumps({"usage": OWN, "metadata": other}).encode()
    assert set(read(behind, streamed=False)) == {Usage(1, 2, None)}
