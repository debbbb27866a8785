"""Images, recordings, films and files in prompts: who they are, and about how many tokens they become.

Owns identity and cost. Identity is the content: the text of a data URL or base64 field (equal bytes have
equal base64), the address of what lies elsewhere, and every field beside it that could change what the
engine sees (``detail``, ``format``); marks for caching are not part of it. Cost is an estimate by the rules
below; it is right to within a few percent for images whose size can be read, and a guess for the rest.

Formulas and constants are those of source [A]; what is a guess of ours says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from epp.apis.canonical import Frames
from epp.apis.image_size import Base64File, image_size

if TYPE_CHECKING:
    from collections.abc import Callable

#: Media tokens that one request may claim; what comes after them counts as little as a frame can. A body of
#: 20 MB could otherwise name enough images to make canonical bytes of many times its size.
MAX_REQUEST_TOKENS = 1 << 18
#: Media and parts of unknown kinds of one request. Each becomes a name of 32 digits and is searched for its
#: cost, were it spelled ``{}``; engines take hundreds of images at most.
MAX_PARTS = 10_000
#: Longest claim of one part, a film's: 90 % of the 24,576 patches that qwen-vl-utils allows one.
MAX_PART_TOKENS = 22_118
#: Guessed bytes a second where the file does not say: speech as 128 kbit/s MP3; films at 2 Mbit/s.
_AUDIO_BYTES_PER_S, _VIDEO_BYTES_PER_S = 16_000, 250_000
#: A guess: what lies elsewhere is taken for half a minute of sound or ten seconds of film.
_UNSEEN_AUDIO_S, _UNSEEN_VIDEO_S = 30.0, 10.0
#: Anthropic: 1,500 to 3,000 tokens a page and at most 100 pages; 50 KB a page is a guess.
_PAGE_TOKENS, _PAGE_BYTES, _MAX_PAGES = 2250, 50_000, 100
_QWEN_3_5 = re.compile(r"qwen3\.[5-9]")
#: A guess: one token's embedding, 4,096 numbers of two bytes.
_EMBEDDING_BYTES = 8192
_ENCODER = msgspec.json.Encoder(order="deterministic")
_IGNORED = frozenset({"cache_control", "type"})
#: What is no part of who a part is, and how it is spelled; looking for that is quicker than a walk.
_LEFT_OUT = ("cache_control", "media_type")
_LEFT_OUT_SPELLED = tuple(f'"{name}"'.encode() for name in _LEFT_OUT)
#: Where parts keep the thing itself: a URL, base64, or the name of an uploaded file.
_PAYLOADS = (
    "url",
    "data",
    "image_url",
    "audio_url",
    "video_url",
    "file_url",
    "file_data",
    "file_id",
    "image",
)
_PAYLOAD_NAMES = frozenset(_PAYLOADS)
#: Names of uploaded files are shorter, files are not.
_LONGEST_NAME = 64
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """What media cost with one family of models.

    Attributes:
        image: tokens of an image of so many pixels wide and high; the flag asks for low detail.
        unseen_image: tokens of an image whose size cannot be read.
        audio_per_s: tokens of a second of sound.
        video_per_s: tokens of a second of film.
    """

    image: Callable[[int, int, bool], int]
    unseen_image: int
    audio_per_s: float
    video_per_s: float


def tiles(width: int, height: int, low: bool) -> int:
    """OpenAI, GPT-4o and 4.1: 85 tokens, and 170 for each tile of 512 pixels.

    The image is first shrunk to fit 2048 x 2048, then to 768 pixels on its shorter side. Low detail: 85.
    """
    if low:
        return 85
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across, down = (max(1, math.ceil(round(side * shrink, 6) / 512)) for side in (width, height))
    return 85 + 170 * across * down


def anthropic_pixels(width: int, height: int, low: bool) -> int:  # noqa: ARG001 - one signature for all
    """Anthropic: a token for 750 pixels, the image shrunk to 1568 pixels on its longer side."""
    shrink = min(1.0, 1568 / max(width, height))
    return min(max(1, math.ceil(width * height * shrink * shrink / 750)), 1600)


def qwen_patches(factor: int) -> Callable[[int, int, bool], int]:
    """Qwen-VL: a token for a patch of so many pixels square (14 or 16 pixels, merged two by two).

    Sides are rounded to whole patches, and the whole is kept between 4 and 16,384 patches.
    """

    def patches(width: int, height: int, low: bool) -> int:  # noqa: ARG001 - one signature for all
        across, down = max(1, round(width / factor)), max(1, round(height / factor))
        return min(max(across * down, 4), 16_384)

    return patches


#: A picture of a megapixel stands for those that cannot be read: 4 tiles, 1,398 or 1,369 tokens.
OPENAI_RATES = Rates(tiles, 765, 10.0, 250.0)
ANTHROPIC_RATES = Rates(anthropic_pixels, 1398, 25.0, 250.0)
#: Two frames a second, merged in pairs, at most 768 patches a frame; films are mostly shown much smaller.
_QWEN_28 = Rates(qwen_patches(28), 1369, 25.0, 384.0)
_QWEN_32 = Rates(qwen_patches(32), 1024, 25.0, 384.0)


def rates_for(model: str, usual: Rates) -> Rates:
    """What media cost with a model: known by its name's family, else as its API counts."""
    name = model.lower()
    if "qvq" not in name and not _QWEN_3_5.search(name) and not any(map(_sees, name.split("/"))):
        return usual
    return _QWEN_32 if "qwen3" in name else _QWEN_28


def _sees(part: str) -> bool:
    """Whether a part of a name, lower-cased, is a Qwen with eyes; it is walked once, whatever it repeats."""
    family = part.partition("qwen")[2]
    return "vl" in family or "omni" in family


class PromptFrames(Frames):
    """Canonical bytes of one request, with what its media cost.

    Args:
        model: the model's public name.
        usual: rates of the request's API, for models that are not known by name.
    """

    __slots__ = ("_described", "_left", "_model", "_rates", "_usual")

    def __init__(self, model: str, usual: Rates = OPENAI_RATES) -> None:
        super().__init__()
        self._model, self._usual = model, usual
        self._rates: Rates | None = None
        self._left = MAX_REQUEST_TOKENS
        self._described = 0

    def add_part(self, part: object, kind: str = "") -> None:
        """A part that is not text, as its API spells it.

        Args:
            part: the part: an object, or the URL or base64 itself.
            kind: what it is, where the part does not say (``type``): ``image``, ``audio``, ``video`` or
                ``embeds``.

        Raises:
            ValueError: as `describe`.
        """
        identity, tokens = self.describe(part, kind)
        self.add_media(identity, tokens)

    def describe(self, part: object, kind: str = "") -> tuple[bytes, int]:
        """Identity and cost in tokens of what `add_part` takes; it is taken from the request's share.

        Raises:
            ValueError: it has no JSON spelling, is nested too deeply, or more than `MAX_PARTS` came.
        """
        self._described += 1
        if self._described > MAX_PARTS:
            raise ValueError(f"more than {MAX_PARTS} media and parts of unknown kinds")
        if self._rates is None:
            self._rates = rates_for(self._model, self._usual)
        if isinstance(part, dict):
            said = part.get("type")
            kind = kind or (said if isinstance(said, str) else "")
            kind = kind or next((key for key in part if key in _PAYLOADS), "")
        named = part.get("uuid") if isinstance(part, dict) else None
        if isinstance(named, str) and named:  # vLLM's name for it: the next turn may send that and no file
            part, payload = named, ""
        else:
            payload = _payload(part, _MAX_DEPTH)
        tokens = min(_tokens(kind, payload, part, self._rates), MAX_PART_TOKENS, max(self._left, 0))
        self._left -= tokens
        return _identity(kind, part, payload), tokens


def _payload(part: object, depth: int) -> str:
    """The thing itself, found at the places where APIs keep it; empty when it is nowhere."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not depth:
        return ""
    if not _PAYLOAD_NAMES.isdisjoint(part):
        for name in _PAYLOADS:
            if found := _payload(part.get(name), depth - 1):
                return found
    for name, value in part.items():
        if isinstance(value, dict) and name not in _IGNORED and (found := _payload(value, depth - 1)):
            return found
    return ""


def _identity(kind: str, part: object, payload: str) -> bytes:
    """A name of 32 hexadecimal digits for kind, content and everything beside it."""
    content = payload.partition(",")[2] if payload.startswith("data:") else payload
    name = xxhash.xxh3_128(content.encode("utf-8", "replace"))
    try:
        spelled = b"" if payload else _ENCODER.encode([kind, part])
        if payload or any(left_out in spelled for left_out in _LEFT_OUT_SPELLED):
            spelled = _ENCODER.encode([kind, _beside(part, payload)])
        name.update(spelled)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return name.hexdigest().encode()


def _beside(part: object, payload: str) -> object:
    """The part without its payload, by which a copy of megabytes is saved, and without marks for caching."""
    if payload and part is payload:
        return None
    if isinstance(part, list):
        return [_beside(value, payload) for value in part]
    if not isinstance(part, dict):
        return part
    return {name: _beside(value, payload) for name, value in part.items() if name not in _LEFT_OUT}


def _tokens(kind: str, payload: str, part: object, rates: Rates) -> int:
    file = _inline(payload)
    if "audio" in kind:
        seconds = _UNSEEN_AUDIO_S if file is None else _sound_s(file)
        return math.ceil(seconds * rates.audio_per_s)
    if "video" in kind:
        seconds = _UNSEEN_VIDEO_S if file is None else len(file) / _VIDEO_BYTES_PER_S
        return math.ceil(seconds * rates.video_per_s)
    if "image" in kind or "screenshot" in kind:
        low = _low(part)
        size = (image_size(file) if file else None) or ((512, 512) if low else None)
        return rates.image(*size, low) if size else rates.unseen_image
    if kind == "embeds":
        return math.ceil(len(file or "") / _EMBEDDING_BYTES)
    if "file" in kind or "document" in kind:
        return _PAGE_TOKENS * min(max(1, round(len(file or "") / _PAGE_BYTES)), _MAX_PAGES)
    return 0  # kinds of parts that are not known cost what their name costs


def _inline(payload: str) -> Base64File | None:
    """The file, when it is in the body: a data URL, or a text too long for an address or a name."""
    if payload.startswith("data:"):
        return Base64File(payload[payload.find(",", 0, 256) + 1 :])
    return Base64File(payload) if len(payload) > _LONGEST_NAME and "://" not in payload[:16] else None


def _low(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    inner = part.get("image_url")
    return part.get("detail") == "low" or (isinstance(inner, dict) and inner.get("detail") == "low")


def _sound_s(file: Base64File) -> float:
    """Seconds of a recording; WAV files say how many bytes a second has (``fmt``, first chunk)."""
    head = file.read(0, 32)
    rate = int.from_bytes(head[28:32], "little") if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt " else 0
    return len(file) / (rate if rate > 0 else _AUDIO_BYTES_PER_S)
