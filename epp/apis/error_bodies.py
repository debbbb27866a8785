"""Error bodies in the words of each API, so that its clients raise their own exceptions.

Owns the shapes; whoever refuses a request chooses status and sentence.
"""

from __future__ import annotations

import msgspec

_ENCODER = msgspec.json.Encoder(order="deterministic")
#: Error types of Anthropic's API by status (its errors page); other 4xx are invalid requests.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
#: Error types of vLLM's routes by status.
_VLLM_TYPES = {
    401: "UnauthorizedError",
    404: "NotFoundError",
    413: "RequestEntityTooLargeError",
    429: "TooManyRequestsError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


def openai_error(status: int, message: str, param: str | None = None) -> bytes:
    """An error of OpenAI: ``{"error": {message, type, param, code}}``, code null but for an unknown model."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    code = "model_not_found" if status == 404 and param == "model" else None
    return _ENCODER.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def vllm_error(status: int, message: str, param: str | None = None) -> bytes:
    """An error of vLLM's own routes: OpenAI's shape, the type named after the status, the code its number."""
    kind = _VLLM_TYPES.get(status, "BadRequestError" if 400 <= status < 500 else "InternalServerError")
    return _ENCODER.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def sglang_error(status: int, message: str, param: str | None = None) -> bytes:  # noqa: ARG001 - one signature
    """An error of SGLang ``/generate``: ``{"error": {"message": …}}`` and nothing else."""
    return _ENCODER.encode({"error": {"message": message}})


def anthropic_error(status: int, message: str, param: str | None = None) -> bytes:  # noqa: ARG001 - one signature
    """An error of Anthropic: ``{"type": "error", "error": {type, message}}``."""
    usual = "invalid_request_error" if 400 <= status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(status, usual)
    return _ENCODER.encode({"type": "error", "error": {"type": kind, "message": message}})
