"""Embeddings, classification, pooling, scores and rankings: bodies to canonical form.

OpenAI's embeddings, and the routes that vLLM adds for models that pool and do not generate (vLLM docs,
"Pooling models"; SGLang follows). All end with the prompt: nothing is generated, so the output limit is 0.
A cross-encoder reads each pair of texts as a prompt of its own: the first text is framed anew for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.apis.chat_messages import Message, add_message, add_part
from epp.apis.decode import decode, decoder, optional, required, session_hint
from epp.apis.error_bodies import openai_error, vllm_error
from epp.apis.media import PromptFrames
from epp.apis.openai import check_listed, frame_prompts
from epp.apis.types import ParsedRequest
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Characters that repeated first texts may add; a query beside a million tiny documents would otherwise
#: become as many copies of itself.
MAX_REPEATED_CHARS = 1 << 20

#: A text, its token ids, or an object or a list of parts (SGLang) that hold media beside it.
_Text = str | list[int | dict[str, Any]] | dict[str, Any]
_Texts = str | list[str | int | list[int | dict[str, Any]] | dict[str, Any]] | dict[str, Any]


class _Pooling(msgspec.Struct, kw_only=True):
    model: str | None = None
    user: str | None = None
    session_id: Any = None
    cache_salt: str | None = None


class _Embeddings(_Pooling, kw_only=True):
    input: str | list[str | int | list[int] | dict[str, Any]] | None = None
    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    messages: list[Message] | None = None
    chat_template: str | None = None
    data: Any = None


class _Rerank(_Pooling, kw_only=True):
    query: _Text
    documents: _Texts


class _Score(_Pooling, kw_only=True):
    text_1: _Texts | None = None
    text_2: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    queries: _Texts | None = None
    query: _Texts | None = None
    documents: _Texts | None = None
    items: _Texts | None = None
    item_first: bool | None = None


_EMBEDDINGS = decoder(_Embeddings)
_RERANK = decoder(_Rerank)
_SCORE = decoder(_Score)
#: Names that vLLM takes for the two sides of a score, in its order, and SGLang's.
_SIDES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
    ("query", "items"),
)


def _request(api: str, body: _Pooling, canonical: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    return ParsedRequest(
        api=api,
        model=body.model or "",
        canonical=canonical,
        stream=False,
        max_output_tokens=0,
        session=session_hint(headers, (body.session_id, body.user)),
        cache_salt=body.cache_salt or "",
        include_usage=False,
    )


class EmbeddingsParser:
    """``/v1/embeddings``, ``/classify`` and ``/pooling``: texts, token ids, or a chat.

    Args:
        name: the API's name.
        vllm: vLLM's own route: its errors, and a model that may be left out.
        plugins: whether ``data`` of any kind may come instead, for a plugin of the engine (IO processors).
    """

    def __init__(self, name: str, *, vllm: bool, plugins: bool = False) -> None:
        self.name, self._vllm, self._plugins = name, vllm, plugins

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Inputs to canonical form, one after the other.

        Raises:
            ClientError: 400 in the API's words.
        """
        asked = decode(_EMBEDDINGS, body)
        (optional if self._vllm else required)(asked.model or "", "model")
        if asked.messages:
            canonical = _frame_chat(asked, asked.messages)
        elif isinstance(asked.input, list) and asked.input and isinstance(asked.input[0], dict):
            canonical = _frame_items(asked, asked.input)
        elif asked.input is not None:
            canonical = frame_prompts(asked.input, "input")
        elif asked.text is not None:  # as SGLang's own /classify names them
            canonical = frame_prompts(_flat(asked.text), "text")
        elif asked.input_ids is not None:
            canonical = frame_prompts(asked.input_ids, "input_ids")
        elif asked.data is not None and self._plugins:
            canonical = _frame_data(asked)
        else:
            raise ClientError(400, "Invalid request: missing required field 'input'", "input")
        return _request(self.name, asked, canonical, headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error of OpenAI or of vLLM."""
        return (vllm_error if self._vllm else openai_error)(status, message, param)


class RerankParser:
    """``/rerank``, ``/v1/rerank``, ``/v2/rerank`` as Jina and Cohere made them and vLLM takes them."""

    name = "vllm-rerank"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Query and documents to canonical form, pair by pair.

        Raises:
            ClientError: 400 in vLLM's words.
        """
        asked = decode(_RERANK, body)
        optional(asked.model, "model")
        documents = _listed(asked.documents, "documents")
        return _request(self.name, asked, _frame_pairs(asked.model or "", [asked.query], documents), headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error of vLLM."""
        return vllm_error(status, message, param)


class ScoreParser:
    """``/score``, ``/v1/score``."""

    name = "vllm-score"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Both sides to canonical form, pair by pair: one against all, or first with first.

        Raises:
            ClientError: 400 in vLLM's words.
        """
        asked = decode(_SCORE, body)
        optional(asked.model, "model")
        for one, two in _SIDES:
            first, second = getattr(asked, one), getattr(asked, two)
            if first is not None and second is not None:
                break
        else:
            raise ClientError(400, "Invalid request: missing required fields 'text_1' and 'text_2'", "text_1")
        firsts, seconds = _listed(first, one), _listed(second, two)
        if len(firsts) not in (1, len(seconds)):
            raise ClientError(400, f"Invalid request: '{one}' and '{two}' differ in length", one)
        turned = two == "items" and bool(asked.item_first)
        canonical = _frame_pairs(asked.model or "", firsts, seconds, turned=turned)
        return _request(self.name, asked, canonical, headers)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error of vLLM."""
        return vllm_error(status, message, param)


def _flat(texts: str | list[str | list[str]]) -> str | list[str]:
    """Texts, those of pairs one after the other."""
    if isinstance(texts, str):
        return texts
    return [one for text in texts for one in ([text] if isinstance(text, str) else text)]


def _frame_items(asked: _Embeddings, items: Sequence[object]) -> bytes:
    """SGLang's inputs of several kinds: each a text, an image, a film, or some of them together."""
    check_listed(len(items), "input")
    framed = PromptFrames(asked.model or "")
    try:
        for item in items:
            if not isinstance(item, dict):
                raise ClientError(400, "Invalid request: 'input' mixes objects and others", "input")
            text = item.get("text")
            framed.add_text(b"P", text if isinstance(text, str) else "")
            for kind in ("image", "video"):
                if item.get(kind) is not None:
                    framed.add_part(item[kind], kind)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "input") from None
    return framed.bytes()


def _frame_data(asked: _Embeddings) -> bytes:
    framed = PromptFrames(asked.model or "")
    try:
        framed.add_part(asked.data, "data")
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "data") from None
    return framed.bytes()


def _frame_chat(asked: _Embeddings, messages: Sequence[Message]) -> bytes:
    framed = PromptFrames(asked.model or "")
    try:
        if asked.chat_template:
            framed.add_text(b"H", asked.chat_template)
        for message in messages:
            add_message(framed, message)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "messages") from None
    return framed.bytes()


def _listed(given: _Texts, field: str) -> list[Any]:
    """One side as a list: a text, token ids or an object alone, or the parts of vLLM's ``content``."""
    if isinstance(given, dict) and isinstance(given.get("content"), list):
        listed: list[Any] = given["content"]
    elif isinstance(given, list) and not (given and isinstance(given[0], int)):
        listed = given
    else:
        listed = [given]
    if not listed:
        raise ClientError(400, f"Invalid request: '{field}' must not be empty", field)
    check_listed(len(listed), field)
    return listed


def _frame_pairs(model: str, firsts: Sequence[Any], seconds: Sequence[Any], *, turned: bool = False) -> bytes:
    """Frames of all pairs; `firsts` has one element for all of `seconds`, or one for each.

    Turned, the second of a pair stands before the first.
    """
    framed, repeated = PromptFrames(model), len(firsts) == 1
    try:
        chars = _chars(firsts[0]) if repeated and len(seconds) > 1 else 0  # once: it spells the side out
        for number, second in enumerate(seconds):
            if turned:
                framed.add_text(b"B", "")
                _add_side(framed, second)
            if not repeated or number * chars <= MAX_REPEATED_CHARS:
                framed.add_text(b"Q", "")
                _add_side(framed, firsts[0 if repeated else number], again=repeated and number > 0)
            if not turned:
                framed.add_text(b"B", "")
                _add_side(framed, second)
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}") from None
    return framed.bytes()


def _chars(side: object) -> int:
    """Characters of a side, about: media and token ids count what their spelling would.

    Raises:
        ValueError: as `PromptFrames.spell`.
    """
    # Python's own spelling of millions of numbers takes several times as long.
    return len(side) if isinstance(side, str) else len(PromptFrames.spell(side))


def _add_side(framed: PromptFrames, side: object, *, again: bool = False) -> None:
    """Frame a side; the texts of one that stands there again have been counted."""
    if isinstance(side, str):
        framed.add_text(b"C", side)
    elif isinstance(side, dict) or (isinstance(side, list) and side and isinstance(side[0], dict)):
        parts = side.get("content") if isinstance(side, dict) else side
        for part in parts if isinstance(parts, list) else [side]:
            if not isinstance(part, (str, dict)):
                raise ClientError(400, "Invalid request: expected a part of content")
            if again and isinstance(part, str):
                framed.add_text(b"C", part)
            else:
                add_part(framed, part)
    else:  # token ids, which no text can pass for
        framed.add_json(b"J", side)
