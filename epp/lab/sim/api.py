"""OpenAI request bodies as a simulated engine reads them: text to tokens, blocks and a deterministic answer.

The simulator's tokenizer is exact about itself and an estimate of real ones: four bytes are one token, and a
token id is one token. The picker's own hashing is not used: an engine is a stranger to it. A prompt that
repeats an earlier prompt and its answer has that text as a byte prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import xxhash

from epp.apis.decode import decode_repaired
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_PER_TOKEN: Final = 4
_VOCABULARY: Final = (
    " the and for are but not you all any can had her was one our out day get has him his how man new now old"
    " see two way who boy did its let put say she too use dad mom run map key sum log set row box car dog cat"
)
# Three letters and the space before them: each word is one token.
_WORDS: Final = tuple(
    _VOCABULARY[start : start + BYTES_PER_TOKEN] for start in range(0, len(_VOCABULARY), BYTES_PER_TOKEN)
)


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request in the simulator's terms.

    Attributes:
        chat: chat completion rather than completion.
        model: the model asked for.
        text: the prompt as the engine sees it.
        stream, include_usage: as asked.
        max_tokens: limit on the answer, None for none.
        min_tokens: least length of the answer.
        ignore_eos: answer until the limit.
        salt: cache salt.
    """

    chat: bool
    model: str
    text: bytes
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    salt: str

    @property
    def prompt_tokens(self) -> int:
        """Return the length of the prompt, at least 1."""
        return max(1, len(self.text) // BYTES_PER_TOKEN)

    def answer_tokens(self, natural_tokens: int, context_tokens: int) -> tuple[int, str]:
        """Return the length of the answer and its finish reason.

        Args:
            natural_tokens: where the model would stop by itself.
            context_tokens: most tokens of prompt and answer together.

        Raises:
            ClientError: prompt and requested answer do not fit the context.
        """
        room = context_tokens - self.prompt_tokens
        asked = self.max_tokens if self.max_tokens is not None else 1
        if asked > room:
            raise ClientError(
                400,
                f"This model's maximum context length is {context_tokens} tokens. However, you requested "
                f"{self.prompt_tokens + asked} tokens ({self.prompt_tokens} prompt, {asked} answer).",
                "messages" if self.chat else "prompt",
            )
        limit = self.max_tokens if self.max_tokens is not None else room
        if self.ignore_eos and self.max_tokens is not None:
            return limit, "length"
        natural = max(natural_tokens, self.min_tokens, 1)
        return (natural, "stop") if natural < limit else (limit, "length")


class _Message(msgspec.Struct):
    role: str
    content: str | list[Any] | None = None
    tool_calls: Any = None


class _Options(msgspec.Struct):
    include_usage: bool | None = None


_Count = Annotated[int, msgspec.Meta(ge=1)]


class _Body(msgspec.Struct):
    model: str = ""
    messages: list[_Message] = []
    prompt: Any = None
    tools: Any = None
    stream: bool | None = None
    stream_options: _Options | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None


_DECODER = msgspec.json.Decoder(_Body)


def parse(body: bytes, *, chat: bool) -> SimRequest:
    """Read a body.

    Raises:
        ClientError: 400 with words for the client.
    """
    try:
        data = decode_repaired(_DECODER, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(400, f"The body is not a request: {error}") from None
    return SimRequest(
        chat=chat,
        model=data.model,
        text=_chat_text(data) if chat else _prompt_text(data.prompt),
        stream=bool(data.stream),
        include_usage=bool(data.stream_options and data.stream_options.include_usage),
        # 16 is the default of the completions API.
        max_tokens=data.max_completion_tokens or data.max_tokens or (None if chat else 16),
        min_tokens=data.min_tokens or 0,
        ignore_eos=bool(data.ignore_eos),
        salt=data.cache_salt or "",
    )


def _chat_text(data: _Body) -> bytes:
    """Put messages under a chat template that ends where the assistant speaks."""
    if not data.messages:
        raise ClientError(400, "messages must be a non-empty list.", "messages")
    pieces = [b"<|tools|>", msgspec.json.encode(data.tools), b"\n"] if data.tools else []
    for message in data.messages:
        parts = [message.content] if isinstance(message.content, str) else message.content or []
        pieces += [b"<|", message.role.encode(), b"|>", *map(_part_text, parts)]
        if message.tool_calls:
            pieces.append(msgspec.json.encode(message.tool_calls))
        pieces.append(b"\n")
    return b"".join((*pieces, b"<|assistant|>"))


def _part_text(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, dict) and "text" in part:
        return str(part["text"]).encode()
    return msgspec.json.encode(part)


def _prompt_text(prompt: Any) -> bytes:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt.encode()
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return b"".join((token & 0xFFFF_FFFF).to_bytes(BYTES_PER_TOKEN, "little") for token in prompt)
    raise ClientError(400, "prompt must be one text, or one list of token ids.", "prompt")


def answer_words(request: SimRequest, tokens: int) -> list[str]:
    """Return the answer, one word per token: the same prompt gets the same answer on every replica."""
    key = xxhash.xxh3_128_digest(request.text, 1)
    words: list[str] = []
    for index in range(0, tokens, 16):
        words += [_WORDS[byte % len(_WORDS)] for byte in xxhash.xxh3_128_digest(key, index)]
    return words[:tokens]


def chain_blocks(request: SimRequest, words: Sequence[str], block_tokens: int) -> list[int]:
    """Return chained hashes of the full blocks of prompt and answer together, root first."""
    text = request.text + "".join(words).encode()
    size = block_tokens * BYTES_PER_TOKEN
    parent = xxhash.xxh3_64_intdigest(f"{request.model}\x00{request.salt}".encode())
    blocks: list[int] = []
    for start in range(0, len(text) - size + 1, size):
        parent = xxhash.xxh3_64_intdigest(text[start : start + size], parent)
        blocks.append(parent)
    return blocks
