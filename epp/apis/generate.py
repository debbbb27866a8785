"""The engines' own generate APIs: bodies to canonical form.

vLLM ``/inference/v1/generate`` (tokens in, tokens out; media as hashes with the places of their tokens) and
``/generate`` of SGLang (text or token ids, alone or in batches, with media), TGI and LMDeploy (a text);
llama.cpp's ``/completion`` and ``/infill``. None needs a model's name.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from epp.apis.body import Body, counted
from epp.apis.canonical import media_words
from epp.apis.decode import Whole, invalid, output_limit
from epp.apis.media import MAX_PARTS
from epp.apis.openai import add_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.apis.media import PromptFrames

#: What stands for one image, film or recording in a text, by the chat templates of current models.
_PLACES = re.compile(
    r"<\|vision_start\|>(?:<\|(?:image|video)_pad\|>)+<\|vision_end\|>|<start_of_image>|<\|image\|>|<image>"
    r"|<video>|<audio>|\[IMG\]|<\|(?:image|video|audio)_pad\|>|<IMG_CONTEXT>|<\|image_\d{1,3}\|>"
)
#: SGLang and LMDeploy generate 128 tokens when nothing is said.
_SGLANG_NEW_TOKENS = 128


class _Sampling(msgspec.Struct):
    max_tokens: Whole | None = None
    max_new_tokens: Whole | None = None
    n: int | None = None
    best_of: int | None = None
    truncate: int | None = None
    decoder_input_details: Any = None
    prompt_logprobs: Any = None
    skip_reading_prefix_cache: Any = None


class _Place(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]] | None = None
    mm_placeholders: dict[str, list[_Place]] | None = None


class Tokens(Body, kw_only=True):
    """Token ids, vLLM's."""

    api = "vllm-generate"
    named = False
    token_ids: list[int]
    sampling_params: _Sampling
    features: _Features | None = None

    def choices(self) -> int:
        """Return how many answers are asked for."""
        return counted(self.sampling_params.n)

    def readable_tokens(self) -> int | None:
        """Return 0 where vLLM reads no cache: it is told so, or asked for the prompt's probabilities."""
        given = self.sampling_params
        skips = given.skip_reading_prefix_cache
        return 0 if (given.prompt_logprobs is not None if skips is None else skips) else None

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame token ids; where the body tells the place of media, their hash stands."""
        if not self.token_ids:
            raise invalid("'token_ids' must not be empty", "token_ids")
        framed.add_ids([_with_media(self.token_ids, self.features)], "token_ids")
        return output_limit(max_tokens=self.sampling_params.max_tokens)


class Generate(Body, kw_only=True):
    """Texts or token ids, SGLang's.

    ``inputs`` and ``parameters`` are TGI's, ``prompt`` and ``max_tokens`` LMDeploy's.
    """

    api = "sglang-generate"
    named = False
    tells_usage = True  # every event carries meta_info
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    input_embeds: list[Any] | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    inputs: str | None = None
    prompt: str | None = None
    max_tokens: Whole | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    parameters: _Sampling | None = None
    return_logprob: Any = None
    logprob_start_len: Any = None

    def choices(self) -> int:
        """Return how many answers to each prompt are asked for."""
        return counted(*(count for one in self._sampling() for count in (one.n, one.best_of)))

    def kept_tokens(self) -> int | None:
        """Return the tokens to which TGI cuts a text; it keeps the end."""
        return self._sampling()[0].truncate

    def readable_tokens(self) -> int | None:
        """Return the tokens before the first whose probability is asked for, the least of a batch.

        Embeddings SGLang takes without its cache alone, and TGI makes its details of the prompt anew.
        """
        if self.input_embeds is not None or self._sampling()[0].decoder_input_details is True:
            return 0
        starts = [start for start in _listed(self.logprob_start_len) if isinstance(start, int) and start >= 0]
        return min(starts) if starts and any(_listed(self.return_logprob)) else super().readable_tokens()

    def _sampling(self) -> list[_Sampling]:
        given = self.sampling_params or self.parameters or _Sampling()
        return given if isinstance(given, list) else [given]

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame texts or token ids, alone or in a batch.

        The output limit is the largest of a batch: it ends with its longest answer.
        """
        media = [
            (one, kind)
            for kind in ("image", "video", "audio")
            for inner in _listed(getattr(self, f"{kind}_data"))
            for one in _listed(inner)
            if one is not None
        ]
        if self.text is not None:
            _add_texts(framed, _listed(self.text), media)
        elif self.input_ids is not None:
            add_prompts(framed, self.input_ids, "input_ids", media)
        elif self.input_embeds is not None:
            framed.add_json(b"J", self.input_embeds)
        elif (text := self.prompt if self.inputs is None else self.inputs) is not None:
            framed.add_text(b"P", text)
        else:
            raise invalid("one of text, input_ids and input_embeds is required")
        limits = [
            _SGLANG_NEW_TOKENS if one.max_new_tokens is None else one.max_new_tokens
            for one in self._sampling()
        ]
        return output_limit(max_tokens=self.max_tokens, max_new_tokens=max(limits))


class Llama(Body, kw_only=True):
    """Texts, token ids or mixtures, llama.cpp's, alone or in a batch; or the code around a gap."""

    api = "llamacpp-completion"
    named = False
    tells_usage = True  # the last event of each prompt carries timings
    prompt: Any = None
    n_predict: Whole | None = None
    max_tokens: Whole | None = None
    input_extra: Any = None
    input_prefix: Any = None
    input_suffix: Any = None

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame prompts; of code other files, what is before the gap and behind it, what begins it."""
        prompt = self.prompt
        if isinstance(prompt, dict):  # a text with media, whose places it marks
            for one in _listed(prompt.get("multimodal_data") or []):
                framed.add_part(one, "image")
            prompt = prompt.get("prompt_string")
        if self.input_prefix is not None or self.input_suffix is not None:
            files = [file.get("text") for file in _listed(self.input_extra) if isinstance(file, dict)]
            for text in (*files, self.input_prefix, self.input_suffix, prompt):
                if isinstance(text, str):
                    framed.add_text(b"P", text)
        elif len(set(map(type, _listed(prompt)))) > 1:
            framed.add_json(b"J", prompt)
        else:
            add_prompts(framed, prompt, "prompt")
        return output_limit(n_predict=self.n_predict, max_tokens=self.max_tokens)


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _with_media(ids: list[int], features: _Features | None) -> list[int]:
    """Return ids with words of a medium's hash in its places, as engines key their cache by both."""
    if features is None or not features.mm_hashes or not features.mm_placeholders:
        return ids
    if sum(map(len, features.mm_placeholders.values())) > MAX_PARTS:
        raise invalid(f"more than {MAX_PARTS} places of media", "features")
    words, left = list(ids), len(ids)
    for kind, places in features.mm_placeholders.items():
        hashes = features.mm_hashes.get(kind, [])
        if len(hashes) != len(places):
            raise invalid(f"hashes and places of {kind!r} differ", "features")
        for name, place in zip(hashes, places, strict=True):
            left -= place.length  # places do not overlap: what all of them cover is bounded by the prompt
            if place.offset < 0 or place.length < 0 or place.offset + place.length > len(ids) or left < 0:
                raise invalid(f"a place of {kind!r} is not in the prompt", "features")
            identity = xxhash.xxh3_128_hexdigest(f"{kind}\x00{name}".encode("utf-8", "replace")).encode()
            words[place.offset : place.offset + place.length] = media_words(identity, place.length)
    return words


def _add_texts(framed: PromptFrames, texts: Sequence[str], media: list[tuple[Any, str]]) -> None:
    """Frame texts with each medium where the text names its place; media that have none come first."""
    if not texts:
        raise invalid("'text' must not be empty", "text")
    framed.count_values(len(texts))
    framed.prompts = len(texts)
    places = [[place.end() for place in _PLACES.finditer(text)] if media else [] for text in texts]
    if sum(map(len, places)) != len(media):
        for one in media:
            framed.add_part(*one)
        media, places = [], [[] for _ in texts]
    left = iter(media)
    for text, ends in zip(texts, places, strict=True):
        for number, (start, end) in enumerate(pairwise((0, *ends, len(text)))):
            if number:
                framed.add_part(*next(left))
            # Behind a medium the same text goes on.
            framed.add_text(b"C" if number else b"P", text[start:end])
