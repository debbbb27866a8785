"""Requests as a simulated engine reads them: any API's body to text, blocks and a deterministic answer.

The text is the prompt in canonical form (`epp.apis`), up to where a chat's assistant speaks: a prompt that
repeats an earlier prompt and its answer has that text as a byte prefix. The simulator's tokenizer is exact
about itself and an estimate of real ones: four bytes are one token, and a token id is one token. The picker's
own hashing is not used: an engine is a stranger to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from epp.apis.anthropic import Messages
from epp.apis.canonical import Frames, exact_tokens
from epp.apis.decode import decode, decoder
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.apis.types import ParsedRequest, Parser

BYTES_PER_TOKEN: Final = 4
_VOCABULARY: Final = (
    " the and for are but not you all any can had her was one our out day get has him his how man new now old"
    " see two way who boy did its let put say she too use dad mom run map key sum log set row box car dog cat"
)
# Three letters and the space before them: each word is one token.
_WORDS: Final = tuple(
    _VOCABULARY[start : start + BYTES_PER_TOKEN] for start in range(0, len(_VOCABULARY), BYTES_PER_TOKEN)
)


_COUNTS = "anthropic-count-tokens"
_CHATS = frozenset({"openai-chat", "openai-responses", "anthropic-messages"})
#: What engines make of a completion that sets no limit.
_COMPLETION_TOKENS = 16
_IDS_MARK, _BETWEEN_IDS = b"\xffI", b"\xff\xff\xff\xff"


def _speaking() -> bytes:
    frames = Frames()
    frames.add_said("assistant", ".")
    return frames.bytes()[:-1]


_ASSISTANT: Final = _speaking()


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request in the simulator's terms.

    Attributes:
        parsed: the body.
        text: the prompt as the engine sees it.
        prompt_tokens: its length, at least 1.
        min_tokens: least length of the answer.
        ignore_eos: answer until the limit.
        top_n: how many documents a ranking returns, None for all.
    """

    parsed: ParsedRequest
    text: bytes
    prompt_tokens: int
    min_tokens: int
    ignore_eos: bool
    top_n: int | None

    def prompts(self) -> list[bytes]:
        """Return the pairs, texts or lists of token ids that the request holds, one by one."""
        if exact_tokens(self.parsed.canonical) is not None:
            return self.text.split(_BETWEEN_IDS)
        return self.text.split(b"\xffB")[1:] or self.text.split(b"\xffP")[1:] or [self.text]

    def answer_tokens(self, natural_tokens: int, context_tokens: int) -> tuple[int, str]:
        """Return the length of the answer and its finish reason.

        Args:
            natural_tokens: where the model would stop by itself.
            context_tokens: most tokens of prompt and answer together.

        Raises:
            ClientError: prompt and requested answer do not fit the context.
        """
        room, limit = context_tokens - self.prompt_tokens, self.parsed.max_output_tokens
        if limit is None and self.parsed.api == "openai-completions":
            limit = _COMPLETION_TOKENS
        asked = limit or 1  # an API that generates nothing has no limit but 0
        if asked > room:
            raise ClientError(
                400,
                f"This model's maximum context length is {context_tokens} tokens. However, you requested "
                f"{self.prompt_tokens + asked} tokens ({self.prompt_tokens} prompt, {asked} answer).",
                "prompt",
            )
        if self.ignore_eos and limit is not None:
            return asked, "length"
        most, natural = room if limit is None else asked, max(natural_tokens, self.min_tokens, 1)
        return (natural, "stop") if natural < most else (most, "length")


class _Sampling(msgspec.Struct):
    min_tokens: int | None = None
    ignore_eos: bool | None = None


class _Body(_Sampling):
    sampling_params: _Sampling | None = None
    top_n: int | None = None


_DECODER, _ANY = decoder(_Body), decoder(dict)


def parse(parser: Parser, body: bytes) -> SimRequest:
    """Read a body of an API.

    Raises:
        ClientError: 400 with words for the client.
    """
    parsed = parser.parse(body, {})
    if parser.name == _COUNTS:  # of which the picker reads no prompt
        parsed = Messages.parse(body, {})
    more = decode(_DECODER, body)
    sampling = more.sampling_params or more
    ids = exact_tokens(parsed.canonical)
    text = parsed.canonical if ids is None else parsed.canonical.removeprefix(_IDS_MARK)
    if ids is None and parsed.api in _CHATS:
        text += _ASSISTANT
    asked = SimRequest(
        parsed,
        text,
        max(1, ids or len(text) // BYTES_PER_TOKEN),
        min_tokens=sampling.min_tokens or 0,
        ignore_eos=bool(sampling.ignore_eos),
        top_n=more.top_n,
    )
    if parsed.max_output_tokens != 0 and len(asked.prompts()) > 1:
        raise ClientError(400, "A simulated replica generates from one prompt at a time.", "prompt")
    return asked


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
    parent = xxhash.xxh3_64_intdigest(f"{request.parsed.model}\x00{request.parsed.cache_salt}".encode())
    blocks: list[int] = []
    for start in range(0, len(text) - size + 1, size):
        parent = xxhash.xxh3_64_intdigest(text[start : start + size], parent)
        blocks.append(parent)
    return blocks
