"""The canonical request: what every API's body becomes before anything is counted, hashed or priced."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

TemplateArguments = tuple[tuple[str, str | float | bool], ...]
#: Arguments that a template puts before the chat, each with values that say the same as none.
FirstArguments = Mapping[str, Collection[str | float | bool | None]]


class ParsedRequest(Struct, frozen=True):
    """One API request in canonical form.

    Attributes:
        api: name of the parser, e.g. ``openai-chat``.
        model: public model name, ``""`` when absent and allowed to be.
        canonical: the prompt as bytes - tools, system, messages in order - such that two requests whose
            engines would see a common token prefix share a common byte prefix. Lives only as long as the
            request; nothing keeps it.
        stream: whether the client asked for server-sent events.
        max_output_tokens: the client's output limit, None when it sets none.
        session: session hint from body or headers, ``""`` when there is none.
        cache_salt: the client's cache salt; prompts with different salts share nothing.
        include_usage: whether a streamed answer will carry ``usage``.
        template_arguments: what the client gives the model's chat template beside the chat.
        text_only: there is no media in it and it is not given as token ids; False where nobody looked.
        choices: how many answers to the one prompt the client asks for.
    """

    api: str
    model: str
    canonical: bytes
    stream: bool
    max_output_tokens: int | None
    session: str
    cache_salt: str
    include_usage: bool
    template_arguments: TemplateArguments = ()
    text_only: bool = False
    choices: int = 1


class Parser(Protocol):
    """One API: how its bodies read, how its errors look; `epp.apis.registry` knows its paths."""

    @property
    def name(self) -> str:
        """Name in records and metrics."""
        ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Body and lower-cased headers to canonical form.

        Raises:
            ClientError: the body is not what this API accepts.
        """
        ...

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error as this API's clients expect it (JSON bytes)."""
        ...


class MeasuredPrompt(Struct, frozen=True):
    """A prompt reduced to numbers: safe to keep, impossible to read back.

    Attributes:
        namespace: key of (model, cache salt, tenant): prompts of different namespaces share nothing.
        prompt_tokens: counted or estimated tokens.
        blocks: chained keyed hashes (unsigned 64-bit), one per full block, each covering all before it.
        block_tokens: tokens per block (fractional when estimated from bytes), the mean over the prompt.
        token_offsets: tokens up to the end of each block where a tokenizer has counted; empty where the mean
            is all that is known.
    """

    namespace: int
    prompt_tokens: int
    blocks: Sequence[int]
    block_tokens: float
    token_offsets: Sequence[float] = ()

    def tokens_before(self, blocks: int) -> float:
        """Tokens in so many of the first blocks."""
        if 0 < blocks <= len(self.token_offsets):
            return self.token_offsets[blocks - 1]
        return blocks * self.block_tokens


class CountedPrompt(Struct, frozen=True):
    """What a tokenizer says of a prompt.

    Attributes:
        tokens: prompt tokens.
        token_offsets: tokens up to the end of each whole block of canonical bytes, empty when not known.
    """

    tokens: int
    token_offsets: Sequence[float]


class NotCountableError(Exception):
    """A prompt that its model's tokenizer cannot count, and why in one word."""
