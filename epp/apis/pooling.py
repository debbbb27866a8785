"""Embeddings, classification, pooling, scores and rankings: bodies to canonical form.

OpenAI's embeddings, and the routes that vLLM adds for models that pool and do not generate (vLLM docs,
"Pooling models"; SGLang follows). All end with the prompt: nothing is generated, so the output limit is 0.
A cross-encoder reads each pair of texts as a prompt of its own: the first text is framed anew for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.apis.body import Body
from epp.apis.chat_messages import Message, add_messages, add_part
from epp.apis.decode import invalid
from epp.apis.media import PromptFrames
from epp.apis.openai import add_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes that repeated first texts may add; a query beside a million tiny documents would otherwise become as
#: many copies of itself.
MAX_REPEATED_BYTES = 1 << 20

#: A text, its token ids, or an object or a list of parts (SGLang) that hold media beside it.
_Text = str | list[int | dict[str, Any]] | dict[str, Any]
_Texts = str | list[str | int | list[int | dict[str, Any]] | dict[str, Any]] | dict[str, Any]


class Embeddings(Body, kw_only=True):
    """Texts to embed."""

    api = "openai-embeddings"
    truncation_side: str | None = "right"
    input: str | list[str | int | list[int] | dict[str, Any]] | None = None
    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    messages: list[Message] | None = None
    chat_template: str | None = None
    data: Any = None

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame texts, token ids, or a chat.

        vLLM's ``/pooling`` takes ``data`` of any kind instead, for a plugin of the engine (IO processors).
        """
        if self.messages:
            if self.chat_template:
                framed.add_text(b"H", self.chat_template)
            add_messages(framed, self.messages)
        elif isinstance(self.input, list) and self.input and isinstance(self.input[0], dict):
            _add_items(framed, self.input)
        elif self.input is not None:
            add_prompts(framed, self.input, "input")
        elif self.text is not None:  # as SGLang's own /classify names them; pairs come one after the other
            pairs = [self.text] if isinstance(self.text, str) else self.text
            add_prompts(
                framed, [one for pair in pairs for one in ([pair] if isinstance(pair, str) else pair)], "text"
            )
        elif self.input_ids is not None:
            add_prompts(framed, self.input_ids, "input_ids")
        elif self.data is not None and self.api == "vllm-pooling":
            framed.add_part(self.data, "data")
        else:
            raise invalid("missing required field 'input'", "input")
        return 0


class Classify(Embeddings):
    """Texts to classify."""

    api = "vllm-classify"
    named = False


class Pooling(Classify):
    """Texts to pool."""

    api = "vllm-pooling"
    task: Any = None

    def readable_tokens(self) -> int | None:
        """Return 0 where vLLM needs every token's state: for tasks by token, and for those of plugins."""
        by_token = self.data is not None or "token" in str(self.task)
        return 0 if by_token else super().readable_tokens()


class _Pairs(Body):
    """Pairs of texts, of a model that may be left out."""

    named = False
    truncation_side: str | None = "right"

    def add_pairs(
        self, framed: PromptFrames, firsts: Sequence[Any], seconds: Sequence[Any], *, turned: bool = False
    ) -> None:
        """Frame all pairs; `firsts` has one element for all of `seconds`, or one for each.

        Turned, the second of a pair stands before the first.
        """
        query = PromptFrames(framed.model, self.rates, framed.rendering)
        framed.count_values(len(seconds))
        framed.prompts = len(seconds)
        if len(firsts) == 1:
            _add_side(query, b"Q", firsts[0])
        size = len(query.bytes())
        for number, second in enumerate(seconds):
            if turned:
                _add_side(framed, b"B", second)
            if len(firsts) > 1:
                _add_side(framed, b"Q", firsts[number])
            elif number * size <= MAX_REPEATED_BYTES:
                framed.add_frames(query)
            if not turned:
                _add_side(framed, b"B", second)


class Rerank(_Pairs, kw_only=True):
    """A ranking of documents."""

    api = "vllm-rerank"
    query: _Text
    documents: _Texts

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame a ranking as Jina and Cohere made it and vLLM takes it, pair by pair."""
        self.add_pairs(framed, [self.query], _listed(self.documents, "documents"))
        return 0


class Score(_Pairs, kw_only=True):
    """A score of pairs."""

    api = "vllm-score"
    text_1: _Texts | None = None
    text_2: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    queries: _Texts | None = None
    query: _Texts | None = None
    documents: _Texts | None = None
    items: _Texts | None = None
    item_first: bool | None = None

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame a score, pair by pair: one against all, or first with first."""
        for one, two in _SIDES:
            first, second = getattr(self, one), getattr(self, two)
            if first is not None and second is not None:
                break
        else:
            raise invalid("missing required fields 'text_1' and 'text_2'", "text_1")
        firsts, seconds = _listed(first, one), _listed(second, two)
        if len(firsts) not in (1, len(seconds)):
            raise invalid(f"'{one}' and '{two}' differ in length", one)
        self.add_pairs(framed, firsts, seconds, turned=two == "items" and bool(self.item_first))
        return 0


#: Names that vLLM takes for the two sides of a score, in its order, and SGLang's.
_SIDES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
    ("query", "items"),
)


def _add_items(framed: PromptFrames, items: Sequence[object]) -> None:
    """Frame SGLang's inputs of several kinds: each a text, an image, a film, or some of them together."""
    framed.count_values(len(items))
    framed.prompts = len(items)
    for item in items:
        if not isinstance(item, dict):
            raise invalid("'input' mixes objects and others", "input")
        text = item.get("text")
        framed.add_text(b"P", text if isinstance(text, str) else "")
        for kind in ("image", "video"):
            if item.get(kind) is not None:
                framed.add_part(item[kind], kind)


def _listed(given: _Texts, field: str) -> list[Any]:
    """Return one side as a list: a text, token ids or an object alone, or the parts of vLLM's ``content``."""
    if isinstance(given, dict) and isinstance(given.get("content"), list):
        given = given["content"]
    elif not isinstance(given, list) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise invalid(f"'{field}' must not be empty", field)
    return given  # type: ignore[return-value]  # a list by now


def _add_side(framed: PromptFrames, tag: bytes, side: object) -> None:
    framed.add_text(tag, "")
    if isinstance(side, str):
        framed.add_text(b"C", side)
    elif isinstance(side, dict) or (isinstance(side, list) and side and isinstance(side[0], dict)):
        parts = side.get("content") if isinstance(side, dict) else side
        for part in parts if isinstance(parts, list) else [side]:
            if not isinstance(part, (str, dict)):
                raise invalid("expected a part of content")
            add_part(framed, part)
    else:  # token ids, which no text can pass for
        framed.add_json(b"J", side)
