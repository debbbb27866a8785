"""Lists of models as ``/v1/models`` has them: an engine's is read, the pool's is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Header of Anthropic's clients, who expect lists of another form.
ANTHROPIC_HEADER = "anthropic-version"


class ListedModel(
    msgspec.Struct, frozen=True, rename={"context_tokens": "max_model_len", "owner": "owned_by"}
):
    """A model as its engine lists it.

    Attributes:
        context_tokens: context length, prompt and answer together, where the engine tells it: vLLM and SGLang
            do, as ``max_model_len``.
        root: what the engine was started with, a hub id or a folder.
        parent: the base model of an adapter.
        owner: who lists it, mostly the engine's name.
    """

    context_tokens: int | None = None
    root: str | None = None
    parent: str | None = None
    owner: str | None = None


class _Entry(ListedModel, frozen=True, kw_only=True):
    id: str


class _List(msgspec.Struct):
    data: list[_Entry]


_DECODER = msgspec.json.Decoder(_List)


def parse_models(body: bytes) -> dict[str, ListedModel]:
    """Read the names that requests may give, adapters among them; empty when the body tells none."""
    try:
        return {entry.id: entry for entry in _DECODER.decode(body).data}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def openai_models(models: Mapping[str, ListedModel], name: str) -> bytes:
    """Write one of the models, or the list where the name is empty, as OpenAI's API and engines have it."""
    cards = {
        each: {"id": each, "object": "model", "created": 0, "owned_by": model.owner or "unknown"}
        | ({"parent": model.parent} if model.parent else {})
        | ({"max_model_len": model.context_tokens} if model.context_tokens else {})
        for each, model in models.items()
    }
    return msgspec.json.encode(cards[name] if name else {"object": "list", "data": list(cards.values())})


def anthropic_models(models: Mapping[str, ListedModel], name: str) -> bytes:
    """Write one of the models, or where the name is empty all on one page, as Anthropic's API has it."""
    cards: dict[str, dict[str, Any]] = {
        each: {
            "type": "model",
            "id": each,
            "display_name": each,
            "created_at": "1970-01-01T00:00:00Z",  # not known
            "max_input_tokens": model.context_tokens,
        }
        for each, model in models.items()
    }
    ends = {"first_id": next(iter(cards), None), "last_id": next(reversed(cards), None)}
    page = {"data": list(cards.values()), "has_more": False, **ends}
    return msgspec.json.encode(cards[name] if name else page)
