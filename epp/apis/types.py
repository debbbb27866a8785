"""The canonical request: what every API's body becomes before anything is counted, hashed or priced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from epp.apis.rendering import Rendering, by_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.apis.rendering import OptionalBytes, Renderings

#: By lower-cased name.
Headers = Mapping[str, str]
TemplateArguments = tuple[tuple[str, Any], ...]


class ParsedRequest(Struct, frozen=True):
    """One API request in canonical form.

    Attributes:
        api: name of the parser, e.g. ``openai-chat``.
        model: public model name, ``""`` when absent.
        canonical: the prompt as bytes - tools, system, messages in order - such that two requests whose
            engines would see a common token prefix share a common byte prefix. Lives only as long as the
            request; nothing keeps it.
        stream: whether the client asked for server-sent events.
        max_output_tokens: the client's output limit, None when it sets none.
        session: session hint from body or headers, ``""`` when there is none.
        program: the same where it names one agent or conversation, and no person or key that many share.
        cache_salt: the client's cache salt; prompts with different salts share nothing.
        include_usage: whether a streamed answer will carry ``usage``.
        template_arguments: what the client gives the model's chat template beside the chat.
        text_only: there is no media in it and it is not given as token ids.
        choices: how many answers to each prompt the client asks for.
        sequences: how many the engine generates for each, `choices` at least.
        prompts: how many prompts there are, each tokenized and cached for itself.
        readable_tokens: the most tokens of each prompt that the engine may take from its prefix cache, None
            for all.
        kept_tokens: tokens to which the engine cuts each prompt, negative for what fits its context; None
            where it cuts none.
        keeps_start: the engine keeps the beginning of what it cuts, else the end.
        named: the API asks for the model's name.
        rendering: of the model that it was parsed for.
        optional: bytes of the parts that engines may leave out, also where they are not in the prompt.
        rewritten_from: the client's name for the model when a rule gave the request another, ``""`` where the
            client names none; else None.
        previous_response: id of the stored response that it goes on from, ``""`` for none.
        stores: the engine is to store its response.
        media: names of its images, recordings and videos, in order.
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
    sequences: int = 1
    prompts: int = 1
    readable_tokens: int | None = None
    kept_tokens: int | None = None
    keeps_start: bool = False
    named: bool = True
    rendering: Rendering = Rendering()
    optional: OptionalBytes = {}
    rewritten_from: str | None = None
    previous_response: str = ""
    stores: bool = False
    media: tuple[str, ...] = ()
    program: str = ""


#: Status, message and the field at fault to the body of an error.
ErrorBody = Callable[[int, str, str | None], bytes]


class Parse(Protocol):
    """An API's function from bodies to requests."""

    def __call__(self, body: bytes, headers: Headers, renderings: Renderings = by_name) -> ParsedRequest:
        """Read a body, given lower-cased headers and how models' prompts are rendered."""
        ...


class Parser(Struct, frozen=True):
    """One API.

    Attributes:
        name: in records and metrics.
        parse: to canonical form; raises `ClientError` where the body is not what this API accepts.
        error_body: an error as this API's clients expect it (JSON bytes).
        paths: without query; see `epp.apis.registry` for how they are matched.
        methods: that carry such a body.
    """

    name: str
    parse: Parse
    error_body: ErrorBody
    paths: tuple[str, ...]
    methods: frozenset[str]


class TokenCount(NamedTuple):
    """What a tokenizer says of a prompt.

    Attributes:
        tokens: how many.
        offsets: those up to the end of each whole block of canonical bytes, empty when not known.
        ids: token ids, 4 bytes each; empty where they are not asked for or not all known.
    """

    tokens: int
    offsets: Sequence[float]
    ids: bytes = b""


class NotCountableError(Exception):
    """A prompt that its model's tokenizer cannot count, and why in one word."""
