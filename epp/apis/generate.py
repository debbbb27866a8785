"""The engines' own generate APIs: bodies to canonical form.

vLLM ``/inference/v1/generate`` (tokens in, tokens out; media as hashes with the places of their tokens) and
SGLang ``/generate`` (text or token ids, alone or in batches, media beside them). Neither needs a
model's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from epp.apis.canonical import Frames, check_texts, frame_token_ids, media_words
from epp.apis.decode import (
    Salt,
    StreamOptions,
    Whole,
    decode,
    decoder,
    joined_salt,
    optional,
    output_limit,
    session_hint,
)
from epp.apis.error_bodies import sglang_error, vllm_error
from epp.apis.media import MAX_PARTS, PromptFrames
from epp.apis.types import ParsedRequest
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What stands for one image, film or recording in a text, by the chat templates of current models.
_PLACES = re.compile(
    r"<\|vision_start\|>(?:<\|(?:image|video)_pad\|>)+<\|vision_end\|>|<start_of_image>|<\|image\|>|<image>"
    r"|<video>|<audio>|\[IMG\]|<\|(?:image|video|audio)_pad\|>|<IMG_CONTEXT>|<\|image_\d{1,3}\|>"
)
#: SGLang generates 128 tokens when nothing is said.
_SGLANG_NEW_TOKENS = 128


class _Sampling(msgspec.Struct):
    max_tokens: Whole | None = None


class _Place(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]] | None = None
    mm_placeholders: dict[str, list[_Place]] | None = None


class _Tokens(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Sampling
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    features: _Features | None = None
    cache_salt: str | None = None


class _NewTokens(msgspec.Struct):
    max_new_tokens: Whole | None = None


class _Session(msgspec.Struct):
    id: Any = None


class _Generate(msgspec.Struct):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    input_embeds: list[Any] | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    sampling_params: _NewTokens | list[_NewTokens] | None = None
    stream: bool | None = None
    session_params: _Session | None = None
    session_id: Any = None
    routing_key: Any = None
    conversation_id: Any = None
    model: str | None = None
    lora_path: Salt = None
    cache_salt: Salt = None
    extra_key: Salt = None


_TOKENS = decoder(_Tokens)
_GENERATE = decoder(_Generate)


class VllmGenerateParser:
    """``/inference/v1/generate``."""

    name = "vllm-generate"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Token ids to canonical form; where the body tells the place of media, their hash stands there.

        Raises:
            ClientError: 400 in vLLM's words.
        """
        asked = decode(_TOKENS, body)
        optional(asked.model, "model")
        if not asked.token_ids:
            raise ClientError(400, "Invalid request: 'token_ids' must not be empty", "token_ids")
        try:
            canonical = frame_token_ids([_with_media(asked.token_ids, asked.features)])
        except ValueError as error:
            raise ClientError(400, f"Invalid request: {error}", "token_ids") from None
        return ParsedRequest(
            api=self.name,
            model=asked.model or "",
            canonical=canonical,
            stream=bool(asked.stream),
            max_output_tokens=output_limit(max_tokens=asked.sampling_params.max_tokens),
            session=session_hint(headers, ()),
            cache_salt=asked.cache_salt or "",
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        )

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error of vLLM."""
        return vllm_error(status, message, param)


def _with_media(ids: list[int], features: _Features | None) -> list[int]:
    """Ids with words of a medium's hash in its places, as engines key their cache by both."""
    if features is None or not features.mm_hashes or not features.mm_placeholders:
        return ids
    if sum(map(len, features.mm_placeholders.values())) > MAX_PARTS:
        raise ClientError(400, f"Invalid request: more than {MAX_PARTS} places of media", "features")
    words, left = list(ids), len(ids)
    for kind, places in features.mm_placeholders.items():
        hashes = features.mm_hashes.get(kind, [])
        if len(hashes) != len(places):
            raise ClientError(400, f"Invalid request: hashes and places of {kind!r} differ", "features")
        for name, place in zip(hashes, places, strict=True):
            left -= place.length  # places do not overlap: what all of them cover is bounded by the prompt
            if place.offset < 0 or place.length < 0 or place.offset + place.length > len(ids) or left < 0:
                raise ClientError(
                    400, f"Invalid request: a place of {kind!r} is not in the prompt", "features"
                )
            identity = _name(kind, name.encode("utf-8", "replace"))
            words[place.offset : place.offset + place.length] = media_words(identity, place.length)
    return words


def _name(kind: str, content: bytes) -> bytes:
    name = xxhash.xxh3_128(kind.encode("utf-8", "replace") + b"\xff")
    name.update(content)
    return name.hexdigest().encode()


class SGLangGenerateParser:
    """``/generate``."""

    name = "sglang-generate"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Texts or token ids, alone or in a batch, to canonical form.

        The output limit is the largest of a batch: it ends with its longest answer.

        Raises:
            ClientError: 400 in SGLang's words.
        """
        asked = decode(_GENERATE, body)
        optional(asked.model, "model")
        try:
            canonical = _frame(asked)
        except ValueError as error:
            raise ClientError(400, f"Invalid request: {error}") from None
        session = asked.session_params.id if asked.session_params else None
        return ParsedRequest(
            api=self.name,
            model=asked.model or "",
            canonical=canonical,
            stream=bool(asked.stream),
            max_output_tokens=_limit(asked.sampling_params),
            session=session_hint(
                headers, (session, asked.session_id, asked.conversation_id, asked.routing_key)
            ),
            cache_salt=joined_salt(asked.cache_salt, asked.extra_key, asked.lora_path),
            include_usage=True,  # every event carries meta_info
        )

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An error of SGLang."""
        return sglang_error(status, message, param)


def _limit(sampling: _NewTokens | list[_NewTokens] | None) -> int | None:
    given = sampling if isinstance(sampling, list) else [sampling] if sampling else []
    limits = [_SGLANG_NEW_TOKENS if one.max_new_tokens is None else one.max_new_tokens for one in given]
    return output_limit(max_new_tokens=max(limits, default=_SGLANG_NEW_TOKENS))


def _frame(asked: _Generate) -> bytes:
    framed = PromptFrames(asked.model or "")
    media: list[tuple[bytes, int]] = []
    for kind in ("image", "video", "audio"):
        given = getattr(asked, f"{kind}_data")
        media += [framed.describe(one, kind) for one in _flat(given)]
    if asked.text is not None:
        return _frame_texts([asked.text] if isinstance(asked.text, str) else asked.text, media)
    if asked.input_ids is not None:
        return _frame_ids(asked.input_ids, media)
    if asked.input_embeds is None:
        raise ClientError(400, "Either text, input_ids or input_embeds should be provided.")
    framed.add_json(b"J", asked.input_embeds)
    return framed.bytes()


def _flat(given: object) -> Iterator[object]:
    """Media of one prompt or of a batch, in order."""
    for inner in given if isinstance(given, list) else [given]:
        for one in inner if isinstance(inner, list) else [inner]:
            if one is not None:
                yield one


def _frame_texts(texts: Sequence[str], media: list[tuple[bytes, int]]) -> bytes:
    """Texts with each medium where the text names its place; media that have none come first."""
    if not texts:
        raise ClientError(400, "text cannot be empty.")
    check_texts(len(texts))
    framed, left = Frames(), list(reversed(media))
    if media and sum(len(_PLACES.findall(text)) for text in texts) != len(media):
        for identity, tokens in media:
            framed.add_media(identity, tokens)
        left = []
    for text in texts:
        start, tag = 0, b"P"
        for place in _PLACES.finditer(text) if left else ():
            framed.add_text(tag, text[start : place.end()])
            framed.add_media(*left.pop())
            start, tag = place.end(), b"C"  # the same text goes on
        framed.add_text(tag, text[start:])
    return framed.bytes()


def _frame_ids(given: list[int | list[int]], media: list[tuple[bytes, int]]) -> bytes:
    """Token ids; words for media, whose places only the engine knows, come first."""
    kinds = set(map(type, given))
    prompts: list[Any] = [given] if kinds == {int} else given
    if not given or (list in kinds and [] in given):
        raise ClientError(400, "input_ids cannot be empty.")
    if len(kinds) > 1:
        raise ClientError(400, "input_ids should be a list of integers or a list of lists of integers.")
    if kinds != {int}:
        check_texts(len(prompts))
    words = [word for identity, tokens in media for word in media_words(identity, tokens)]
    return frame_token_ids([words + prompts[0], *prompts[1:]])
