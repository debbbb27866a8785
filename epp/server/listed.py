"""What an engine lists as its models: the body of ``GET /v1/models`` as OpenAI's API has it."""

from __future__ import annotations

import msgspec


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_DECODER = msgspec.json.Decoder(_Models)


def listed_names(body: bytes) -> frozenset[str]:
    """The names that requests may give, adapters among them; empty when the body tells none."""
    try:
        return frozenset(model.id for model in _DECODER.decode(body).data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return frozenset()
