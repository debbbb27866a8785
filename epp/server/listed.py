"""What an engine lists as its models: the body of ``GET /v1/models`` as OpenAI's API has it."""

from __future__ import annotations

import msgspec


class _Model(msgspec.Struct):
    id: str
    max_model_len: object = None


class _Models(msgspec.Struct):
    data: list[_Model]


_DECODER = msgspec.json.Decoder(_Models)


def parse_models(body: bytes) -> dict[str, int | None]:
    """Read the names that requests may give, adapters among them; empty when the body tells none.

    Each has its context length in tokens, prompt and answer together, where the engine tells it: vLLM and
    SGLang do, as ``max_model_len``.
    """
    try:
        models = _DECODER.decode(body).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {model.id: _tokens(model.max_model_len) for model in models}


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and value is not True else None
