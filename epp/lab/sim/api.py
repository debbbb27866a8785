"""OpenAI request bodies as a simulated engine reads them: text to tokens, blocks and a deterministic answer.

Owns the simulator's tokenizer, which is exact about itself and an estimate of real ones: four bytes are one
token, and a token id is one token. Must not know the picker's own hashing: an engine is a stranger to it.
Rule: a prompt that repeats an earlier prompt and its answer has that text as a byte prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from epp.apis.surrogates import with_private_escapes
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        """Length of the prompt, at least 1."""
        return max(1, len(self.text) // BYTES_PER_TOKEN)

    def answer_tokens(self, natural_tokens: int, context_tokens: int) -> tuple[int, str]:
        """Length of the answer and its finish reason.

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


def parse(body: bytes, *, chat: bool) -> SimRequest:
    """Read a body.

    Raises:
        ClientError: 400 with words for the client.
    """
    try:
        try:
            data = msgspec.json.decode(body)
        except msgspec.DecodeError:
            data = msgspec.json.decode(with_private_escapes(body) or body)  # engines take lone surrogates
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ClientError(400, "The body must be a JSON object.")
    if data.get("n", 1) not in (1, None):
        raise ClientError(400, "This replica generates one choice per request.", "n")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ClientError(400, "stream_options must be an object.", "stream_options")
    limit_key = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    limit = _count(data, limit_key, least=1)
    if limit is None and not chat:
        limit = 16  # the default of the completions API
    return SimRequest(
        chat=chat,
        model=str(data.get("model") or ""),
        text=_chat_text(data) if chat else _prompt_text(data),
        stream=bool(data.get("stream")),
        include_usage=bool(options.get("include_usage")),
        max_tokens=limit,
        min_tokens=_count(data, "min_tokens", least=0) or 0,
        ignore_eos=bool(data.get("ignore_eos")),
        salt=str(data.get("cache_salt") or ""),
    )


def _count(data: Mapping[str, Any], key: str, least: int) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ClientError(400, f"{key} must be an integer of at least {least}.", key)
    return value


def _chat_text(data: Mapping[str, Any]) -> bytes:
    """Messages under a chat template, ending where the assistant speaks."""
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ClientError(400, "messages must be a non-empty list.", "messages")
    pieces: list[bytes] = []
    if data.get("tools"):
        pieces += [b"<|tools|>", msgspec.json.encode(data["tools"]), b"\n"]
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ClientError(400, f"messages[{index}] must be an object with a role.", f"messages[{index}]")
        pieces += [b"<|", message["role"].encode(), b"|>", _content(message.get("content"), index)]
        if message.get("tool_calls"):
            pieces.append(msgspec.json.encode(message["tool_calls"]))
        pieces.append(b"\n")
    pieces.append(b"<|assistant|>")
    return b"".join(pieces)


def _content(content: object, index: int) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        return b"".join(
            str(part["text"]).encode()
            if isinstance(part, dict) and "text" in part
            else msgspec.json.encode(part)
            for part in content
        )
    raise ClientError(400, f"messages[{index}].content must be text or parts.", f"messages[{index}].content")


def _prompt_text(data: Mapping[str, Any]) -> bytes:
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt.encode()
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return b"".join((token & 0xFFFF_FFFF).to_bytes(BYTES_PER_TOKEN, "little") for token in prompt)
    raise ClientError(400, "prompt must be one text, or one list of token ids.", "prompt")


def answer_words(request: SimRequest, tokens: int) -> list[str]:
    """The answer, one word per token: the same prompt gets the same answer on every replica."""
    key = xxhash.xxh3_128_digest(request.text, 1)
    words: list[str] = []
    for index in range(0, tokens, 16):
        words += [_WORDS[byte % len(_WORDS)] for byte in xxhash.xxh3_128_digest(key, index)]
    return words[:tokens]


def chain_blocks(request: SimRequest, words: Sequence[str], block_tokens: int) -> list[int]:
    """Chained hashes of the full blocks of prompt and answer together, root first."""
    text = request.text + "".join(words).encode()
    size = block_tokens * BYTES_PER_TOKEN
    parent = xxhash.xxh3_64_intdigest(f"{request.model}\x00{request.salt}".encode())
    blocks: list[int] = []
    for start in range(0, len(text) - size + 1, size):
        parent = xxhash.xxh3_64_intdigest(text[start : start + size], parent)
        blocks.append(parent)
    return blocks
