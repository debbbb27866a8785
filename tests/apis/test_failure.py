"""Errors as engines write them are read to a status and a word; what is no error never is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp.apis.events import LINE_BYTES
from epp.apis.failure import MODEL_NOT_FOUND, AnswerFailure, failure_in

VLLM = {
    "error": {
        "message": "The model `x` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
}
SGLANG = {
    "object": "error",
    "message": "The following requested LoRA adapters are not loaded: x\nLoaded adapters: dict_keys([]).",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
}
DYNAMO = {"message": "Model not found", "type": "Not Found", "code": 404}
LMDEPLOY = {
    "message": "The model 'x' does not exist.",
    "type": "not_found_error",
    "code": 404,
    "object": "error",
}
OPENAI = {
    "error": {"message": "No.", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
}
ANTHROPIC = {"type": "error", "error": {"type": "not_found_error", "message": "model: x not found"}}


@pytest.mark.parametrize("body", [VLLM, DYNAMO, LMDEPLOY, OPENAI, ANTHROPIC])
def test_every_engine_that_lacks_a_model_says_so(body: dict[str, Any]) -> None:
    assert failure_in(json.dumps(body).encode(), 404) == AnswerFailure(404, MODEL_NOT_FOUND)


def test_an_adapter_that_is_not_loaded_is_a_model_that_is_not_there() -> None:
    assert failure_in(json.dumps(SGLANG).encode(), 400) == AnswerFailure(400, MODEL_NOT_FOUND)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (
            404,
            {"error": {"message": "Response with id 'resp_1' not found.", "type": "NotFoundError"}},
            "NotFoundError",
        ),
        (
            400,
            {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}},
            "invalid_request_error",
        ),
        (422, {"error": "`inputs` must have less than 4 tokens", "error_type": "validation"}, "validation"),
        (422, {"detail": [{"type": "missing", "loc": ["body", "messages"]}]}, ""),
        (404, {"detail": "Not Found"}, ""),
        (503, ["what"], ""),
    ],
)
def test_a_refusal_keeps_its_status_and_the_engines_word(status: int, body: object, code: str) -> None:
    assert failure_in(json.dumps(body).encode(), status) == AnswerFailure(status, code)


def test_of_a_long_error_its_beginning_counts() -> None:
    text = json.dumps({"error": {"type": "BadRequestError", "message": 'x" ' * LINE_BYTES}}).encode()
    assert failure_in(text[:LINE_BYTES], 400) == AnswerFailure(400, "BadRequestError")


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (
            {"error": {"message": "m", "code": 500, "type": "InternalServerError"}},
            (500, "InternalServerError"),
        ),
        ({"error": {"message": "m", "type": "rate_limit_error"}}, (429, "rate_limit_error")),
        ({"error": {"object": "error", "message": "m", "type": "abort", "code": 503}}, (503, "abort")),
        ({"error": {"message": "m"}}, (500, "")),
        ({"error": "Request failed during generation", "error_type": "generation"}, (500, "generation")),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, (529, "overloaded")),
        (
            {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
            (400, "BadRequestError"),
        ),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, (529, "overloaded_error")),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "m"}, (429, "rate_limit_exceeded")),
        (
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}},
            (500, "server_error"),
        ),
        (
            {"object": "response", "status": "failed", "error": {"code": "server_error"}},
            (500, "server_error"),
        ),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}, (500, "abort")),
        (
            {
                "text": "",
                "meta_info": {"finish_reason": {"type": "abort", "message": "m", "status_code": 400}},
            },
            (400, "abort"),
        ),
    ],
)
def test_a_failure_inside_a_200_has_the_status_that_it_tells_or_means(
    body: object, failure: tuple[int, str]
) -> None:
    assert failure_in(json.dumps(body).encode()) == AnswerFailure(*failure)


@pytest.mark.parametrize(
    "body",
    [
        {"error": None, "choices": [{"finish_reason": "stop"}]},
        {"object": "response", "error": None, "status": "completed", "tools": [{"error": {"code": 500}}]},
        {"tools": [{"parameters": {"properties": {"error": {"type": "string"}}}}]},
        {"content": [{"type": "tool_use", "input": {"error": {"code": 500}, "type": "error"}}]},
        {"choices": [{"delta": {"content": '{"error": {"code": 500}}', "role": "error"}}]},
        {"choices": [{"delta": {"content": "error"}, "finish_reason": None}]},
    ],
)
def test_what_models_and_clients_write_is_no_failure(body: object) -> None:
    text = json.dumps(body).encode()
    assert all(failure_in(text[:end]) is None for end in range(len(text) + 1))
