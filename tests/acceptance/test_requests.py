"""Every API is picked for, every refusal is in its words, and what is not read passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.kit import MODEL, http, serving, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.kit import Stack

TURN = [{"role": "user", "content": "where is the harbour?"}]
#: Path to a body that the API's engines take. The simulated replicas speak the first two; a 404 of theirs shows
#: that the request was picked and sent.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": TURN, "max_tokens": 4},
    "/v1/completions": {"model": MODEL, "prompt": "where is the harbour?", "max_tokens": 4},
    "/v1/responses": {"model": MODEL, "input": "where is the harbour?"},
    "/v1/embeddings": {"model": MODEL, "input": ["where is the harbour?"]},
    "/v1/messages": {"model": MODEL, "messages": TURN, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": TURN},
    "/v1/rerank": {"model": MODEL, "query": "harbour", "documents": ["a quay", "a hill"]},
    "/v1/score": {"model": MODEL, "text_1": "harbour", "text_2": "a quay"},
    "/classify": {"model": MODEL, "input": "where is the harbour?"},
    "/pooling": {"model": MODEL, "input": "where is the harbour?"},
    "/inference/v1/generate": {"model": MODEL, "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}},
    "/generate": {"text": "where is the harbour?", "sampling_params": {"max_new_tokens": 4}},
}
DECISION = "x-epp-decision-id"


@pytest.mark.parametrize("path", BODIES)
def test_an_api_is_picked_for(stack: Stack, path: str) -> None:
    answer = http(stack.url + path, BODIES[path])
    assert answer.status in (200, 404), answer
    record = http(f"{stack.picker_url}/decisions/{answer.headers[DECISION]}").json
    assert "harbour" not in json.dumps(record)  # no prompt text is kept


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/chat/completions", ("error", "type")),
        ("/v1/completions", ("error", "type")),
        ("/v1/responses", ("error", "type")),
        ("/v1/embeddings", ("error", "type")),
        ("/v1/messages", ("type", "error")),
        ("/v1/rerank", ("error",)),
    ],
)
def test_a_malformed_body_is_refused_in_the_apis_words(
    stack: Stack, path: str, words: tuple[str, ...]
) -> None:
    answer = http(stack.url + path, "{")
    assert answer.status == 400, answer
    text = json.dumps(answer.json)
    assert all(f'"{word}"' in text for word in words)
    assert DECISION not in answer.headers


def test_a_streamed_answer_arrives_whole_and_its_usage_is_learned(stack: Stack) -> None:
    before = stack.metric("llm_d_epp_request_total")
    answer = stack.chat(stream=True, stream_options={"include_usage": True})
    events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 4
    until(lambda: stack.metric("llm_d_epp_request_total") > before)


def test_other_paths_pass_through_and_are_balanced(stack: Stack) -> None:
    answer = http(f"{stack.url}/v1/models")
    assert answer.status == 200
    assert answer.json["data"][0]["id"] == MODEL


def test_a_conversation_returns_to_the_replica_that_holds_its_prefix(stack: Stack) -> None:
    turns: list[dict[str, str]] = [{"role": "user", "content": "a long beginning " * 300}]
    served = set()
    for number in range(4):
        answer = stack.chat(messages=turns)
        served.add(answer.headers["x-served-by"])
        said = answer.json["choices"][0]["message"]
        turns += [said, {"role": "user", "content": f"and then, {number}? " * 20}]
    assert len(served) == 1
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000


def test_forged_destination_headers_choose_nothing(stack: Stack) -> None:
    forged = {"x-gateway-destination-endpoint": "127.0.0.1:9"}
    answers = [stack.chat(headers=forged) for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5


@pytest.mark.parametrize("variant", ["standalone", "original-dst", "full-duplex"])
def test_every_variant_of_envoy_serves(tmp_path: Path, variant: str) -> None:
    policy = {"fallbacks": 0} if variant == "original-dst" else {}
    with serving(tmp_path, "a", "b", envoy_words=("--variant", variant), policy=policy) as stack:
        answers = [stack.chat(f"question {n} " * 200, stream=n % 2 == 1) for n in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        assert all(answer.text.rstrip().endswith("[DONE]") for answer in answers[1::2])
        assert stack.metric("epp_decisions_total") == 4


def test_the_grpcio_transport_serves(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", listen={"transport": "grpcio"}) as stack:
        assert [stack.chat(stream=bool(n % 2)).status for n in range(4)] == [200] * 4
        assert stack.metric("epp_decisions_total") == 4
