"""The list of models that an engine gives at ``/v1/models``: read, whatever else it says."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class ListedModel(NamedTuple):
    """A model as its engine lists it.

    Attributes:
        context_tokens: context length, prompt and answer together, where the engine tells it: vLLM and SGLang
            do, as ``max_model_len``.
        root: what the engine was started with, a hub id or a folder; empty when not known.
        parent: the base model of an adapter; empty for others.
        owner: who lists it, mostly the engine's name; empty when not known.
    """

    context_tokens: int | None = None
    root: str = ""
    parent: str = ""
    owner: str = ""


class _Model(msgspec.Struct):
    id: str
    max_model_len: object = None
    root: object = None
    parent: object = None
    owned_by: object = None


class _Models(msgspec.Struct):
    data: list[_Model]


_DECODER = msgspec.json.Decoder(_Models)


def parse_models(body: bytes) -> dict[str, ListedModel]:
    """Read the names that requests may give, adapters among them; empty when the body tells none."""
    try:
        models = _DECODER.decode(body).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {
        model.id: ListedModel(
            _tokens(model.max_model_len), _text(model.root), _text(model.parent), _text(model.owned_by)
        )
        for model in models
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and value is not True else None
