"""What the bodies of all APIs have in common: the way to a request, session hints and cache salts.

Owns the order of session hints. Knows no API: each is a subclass that frames its own prompt.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from epp.apis.decode import decode, decoder, invalid
from epp.apis.media import OPENAI_RATES, PromptFrames, Rates
from epp.apis.rendering import by_name
from epp.apis.types import ParsedRequest
from epp.types import MAX_MODEL_CHARS

if TYPE_CHECKING:
    from epp.apis.rendering import Renderings
    from epp.apis.types import Headers

_SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "x-conversation-id",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
    "x-opencode-session",
    "x-amp-thread-id",
    "x-litellm-session-id",
    "session_id",
)
#: Names one of the agents that share a session of Claude Code's; the first of them goes without.
_AGENT_HEADER = "x-claude-code-agent-id"
#: A cache salt: one for all prompts of a batch, or one for each.
Salt = str | list[str | None] | None
#: Sequences of one request that are counted; the APIs that engines follow take 128.
_MOST_SEQUENCES = 1024
#: Fields that some engines do not know, and do not check: what is of another type there is as if it were not.
_OPTIONAL = frozenset(
    {
        "best_of",
        "cache_salt",
        "chat_template",
        "documents",
        "extra_key",
        "functions",
        "input_ids",
        "lora_path",
        "lora_request",
        "n",
        "n_cmpl",
        "prompt_embeds",
        "prompt_token_ids",
        "session_params",
        "stream_options",
        "truncate_prompt_tokens",
        "truncation_side",
    }
)
_ENCODER = msgspec.json.Encoder(order="deterministic")


class _StreamOptions(msgspec.Struct):
    """``stream_options`` of OpenAI's APIs and of engines that follow them."""

    include_usage: bool | None = None


class _Adapter(msgspec.Struct):
    lora_name: str | None = None
    lora_int_id: int | None = None


class _NamedSession(msgspec.Struct):
    id: Any = None


_decoder_of = cache(decoder)


class Body(msgspec.Struct, kw_only=True):
    """Fields that mean the same in every API that has them.

    ``extra_key``, ``lora_path``, ``session_params`` and ``routing_key`` are SGLang's, ``lora_request`` is
    TensorRT-LLM's, ``cache_prompt`` and ``n_cmpl`` llama.cpp's, ``prompt_logprobs`` vLLM's, which others took
    over.

    Attributes:
        api: name of the parser.
        rates: what media cost in this API.
        named: whether the API asks for the model's name; where one is served, engines do without.
        tells_usage: every stream tells its usage, whether the client asks for it or not.
        stored: the engine may store its responses, for others to go on from.
    """

    api: ClassVar[str]
    rates: ClassVar[Rates] = OPENAI_RATES
    named: ClassVar[bool] = True
    tells_usage: ClassVar[bool] = False
    stored: ClassVar[bool] = False

    model: str | None = None
    n: int | None = None
    n_cmpl: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    cache_salt: Salt = None
    extra_key: Salt = None
    lora_path: Salt = None
    lora_request: _Adapter | None = None
    session_params: _NamedSession | None = None
    session_id: Any = None
    metadata: Any = None
    conversation: Any = None
    conversation_id: Any = None
    routing_key: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    user: Any = None
    previous_response_id: Any = None
    store: Any = None
    prompt_logprobs: Any = None
    cache_prompt: Any = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None

    @classmethod
    def parse(cls, body: bytes, headers: Headers, renderings: Renderings = by_name) -> ParsedRequest:
        """Read a body of this API.

        Raises:
            ClientError: 400, it is none.
        """
        asked: Body = decode(_decoder_of(cls), body, _OPTIONAL)
        model = asked.model or ""
        if len(model) > MAX_MODEL_CHARS:
            raise invalid(f"'model' must not be longer than {MAX_MODEL_CHARS} characters", "model")
        framed = PromptFrames(model, cls.rates, renderings(model))
        limit, options, choices = asked.frame(framed), asked.stream_options, asked.choices()
        previous = asked.previous_response_id if cls.stored else ""
        return ParsedRequest(
            api=cls.api,
            model=model,
            canonical=framed.bytes(),
            stream=bool(asked.stream),
            max_output_tokens=limit,
            session=asked._session(headers),
            program=asked._program(headers),
            cache_salt=asked._salt(),
            include_usage=cls.tells_usage or bool(options and options.include_usage),
            template_arguments=framed.arguments,
            text_only=framed.text_only,
            choices=choices,
            sequences=counted(choices, asked.best_of),
            prompts=framed.prompts,
            readable_tokens=asked.readable_tokens(),
            kept_tokens=asked.kept_tokens(),
            keeps_start=asked.truncation_side == "right",
            named=cls.named,
            rendering=framed.rendering,
            optional=framed.optional,
            previous_response=previous if isinstance(previous, str) else "",
            stores=cls.stored and asked.store is not False,
            media=tuple(framed.media),
        )

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame the prompt; return the output limit.

        Raises:
            ClientError: 400, the body is not what this API accepts.
        """
        raise NotImplementedError

    def choices(self) -> int:
        """Return how many answers to each prompt are asked for; beams are as many as those."""
        return counted(self.n, self.n_cmpl)

    def readable_tokens(self) -> int | None:
        """Return how much of a prompt the engine may take from its prefix cache, None for all.

        Who asks for the prompt's own probabilities gets them from a prefill of it.
        """
        return None if self.prompt_logprobs is None and self.cache_prompt is not False else 0

    def kept_tokens(self) -> int | None:
        """Return the tokens to which the engine cuts prompts, negative for what fits; None for no cut."""
        return self.truncate_prompt_tokens

    def _session(self, headers: Headers) -> str:
        """Return the first hint that is a text and not empty: of the headers, then of the body.

        The most specific comes first: a conversation, a key that many of them share, a person.
        """
        metadata = self.metadata if isinstance(self.metadata, dict) else {}
        return self._conversation(headers) or _first(
            self.routing_key,
            self.prompt_cache_key,
            metadata.get("user_id"),
            self.safety_identifier,
            self.user,
            self.previous_response_id,
        )

    def _conversation(self, headers: Headers) -> str:
        metadata = self.metadata if isinstance(self.metadata, dict) else {}
        conversation = self.conversation
        return _first(
            *map(headers.get, _SESSION_HEADERS),
            self.session_params.id if self.session_params else None,
            self.session_id,
            metadata.get("session_id"),
            conversation.get("id") if isinstance(conversation, dict) else conversation,
            self.conversation_id,
        )

    def _program(self, headers: Headers) -> str:
        """Return what names the agent: its conversation, and which of the agents in it.

        Claude Code writes its session into ``metadata.user_id``, a text or JSON.
        """
        found = self._conversation(headers)
        if not found and isinstance(self.metadata, dict):
            user = self.metadata.get("user_id")
            found = user if isinstance(user, str) and "session" in user else ""
        agent = headers.get(_AGENT_HEADER, "")
        return f"{found} {agent}" if found and agent else found

    def _salt(self) -> str:
        """Return one salt for all that keeps prefixes apart: salt, extra key, adapter."""
        parts: list[object] = [self.cache_salt, self.extra_key, self.lora_path]
        if self.lora_request is not None:
            parts.append(self.lora_request)
        salt = self.cache_salt or ""
        return salt if isinstance(salt, str) and not any(parts[1:]) else _ENCODER.encode(parts).decode()


def _first(*hints: Any) -> str:
    """Return the first that is a text and not empty."""
    return next((hint for hint in hints if isinstance(hint, str) and hint), "")


def counted(*counts: int | None) -> int:
    """Return the largest number of answers or sequences that a body's fields ask for, 1 at least."""
    return min(max(1, 1, *filter(None, counts)), _MOST_SEQUENCES)
