"""Images, recordings, films and files in prompts: who they are, and about how many tokens they become.

Owns identity and cost. Identity is the content: the text of a data URL or base64 field (equal bytes have
equal base64), the address of what lies elsewhere, and every field beside it that could change what the
engine sees (``detail``, ``format``); marks for caching are not part of it. Cost is an estimate by the rules
below; it is right to within a few percent for images whose size can be read, and a guess for the rest.

Formulas and constants are those of source [A]; what is a guess of ours says so.
"""

from __future__ import annotations

import binascii
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from struct import unpack_from
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from epp.apis.calls import read_call
from epp.apis.canonical import Frames, described, media_words, spell
from epp.apis.decode import invalid
from epp.apis.rendering import PAST_REASONING, REASONING, UNCHOSEN_TOOLS, Rendering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.apis.types import TemplateArguments

_MAX_JPEG_SEGMENTS = 64
#: Start-of-frame markers of JPEG (ITU-T T.81, table B.1), all of which carry the size.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: No encoder in use writes larger sides; larger numbers are garbage.
_MAX_SIDE = 1 << 20
_WEBP_SIDE = 0x3FFF


class Base64File:
    """Random access to the file that a base64 text holds.

    Args:
        text: base64, without line breaks; nothing of it is copied but what is read.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, zeros beyond its end and where the text is not base64."""
        first, last = offset // 3 * 4, -(-(offset + size) // 3) * 4
        piece = self._text[first:last]
        try:
            found = binascii.a2b_base64(piece + "=" * (-len(piece) % 4))
        except ValueError:
            found = b""
        return found[offset % 3 :][:size].ljust(size, b"\0")

    def __len__(self) -> int:
        """Return the bytes of the file, to within two."""
        return len(self._text) * 3 // 4


def image_size(file: Base64File) -> tuple[int, int] | None:
    """Return width and height in pixels, from the headers of PNG, JPEG, GIF and WebP without decoding.

    Work is bounded: a few small reads at known places, at most `_MAX_JPEG_SEGMENTS` of them. None for
    whatever is torn, unknown or absurd.
    """
    head, width, height = file.read(0, 30), 0, 0
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = unpack_from(">II", head, 16)
    elif head.startswith(b"GIF8"):
        width, height = unpack_from("<HH", head, 6)
    elif head.startswith(b"\xff\xd8"):
        width, height = _jpeg(file)
    elif (webp := head[8:16]) == b"WEBPVP8X":  # RFC 9649, sections 2.5 to 2.7
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    elif webp == b"WEBPVP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & _WEBP_SIDE) + 1, (bits >> 14 & _WEBP_SIDE) + 1
    elif webp == b"WEBPVP8 ":
        width, height = (side & _WEBP_SIDE for side in unpack_from("<HH", head, 26))
    return (width, height) if 0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE else None


def _jpeg(file: Base64File) -> tuple[int, int]:
    offset = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        mark, marker, size, _, height, width = unpack_from(">BBHBHH", file.read(offset, 9))
        if mark != 0xFF:
            break
        if marker in _JPEG_FRAMES:
            return width, height
        offset += 1 if marker == 0xFF else 2 + size  # fill bytes may precede a marker
    return 0, 0


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
#: A guess: what lies elsewhere is taken for a megapixel, half a minute of sound or ten seconds of film.
_UNSEEN_IMAGE = (1024, 1024)
_UNSEEN_AUDIO_S, _UNSEEN_VIDEO_S = 30.0, 10.0
#: Anthropic: 1,500 to 3,000 tokens a page and at most 100 pages; 50 KB a page is a guess.
_PAGE_TOKENS, _PAGE_BYTES, _MAX_PAGES = 2250, 50_000, 100
#: A guess: one token's embedding, 4,096 numbers of two bytes.
_EMBEDDING_BYTES = 8192
_ENCODER = msgspec.json.Encoder(order="deterministic")
_IGNORED = frozenset({"cache_control", "type"})
#: Fields that are no part of a part's identity.
_LEFT_OUT = ("cache_control", "media_type")
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
#: What signs the URLs of objects in S3, Google Cloud Storage, Azure, CloudFront, OSS and COS.
_SIGNATURE = re.compile(
    r"(?:^|&)(?:x-amz-signature|x-goog-signature|x-oss-signature|q-signature|sig|signature)=", re.IGNORECASE
)
#: Names of uploaded files are shorter, files are not.
_LONGEST_NAME = 64
_MAX_DEPTH = 3


#: A part, and its kind where the part does not say.
Part = tuple[object, str]


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """What media cost with one family of models.

    Attributes:
        image: tokens of an image of so many pixels wide and high; the flag asks for low detail.
        audio_per_s: tokens of a second of sound.
        video_per_s: tokens of a second of film.
    """

    image: Callable[[int, int, bool], int]
    audio_per_s: float
    video_per_s: float


def tiles(width: int, height: int, low: bool) -> int:
    """Return what OpenAI counts (GPT-4o, 4.1): 85 tokens, and 170 for each tile of 512 pixels.

    The image is first shrunk to fit 2048 x 2048, then to 768 pixels on its shorter side. Low detail: 85.
    """
    if low:
        return 85
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across, down = (max(1, math.ceil(round(side * shrink, 6) / 512)) for side in (width, height))
    return 85 + 170 * across * down


def anthropic_pixels(width: int, height: int, low: bool) -> int:  # noqa: ARG001 - one signature for all
    """Return what Anthropic counts: a token for 750 pixels, after shrinking to 1568 on the longer side."""
    shrink = min(1.0, 1568 / max(width, height))
    return min(max(1, math.ceil(width * height * shrink * shrink / 750)), 1600)


def qwen_patches(factor: int) -> Callable[[int, int, bool], int]:
    """Return the rule of Qwen-VL: a token for a patch of 14 or 16 pixels square, merged two by two.

    Sides are rounded to whole patches, and the whole is kept between 4 and 16,384 patches.
    """

    def patches(width: int, height: int, low: bool) -> int:  # noqa: ARG001 - one signature for all
        across, down = max(1, round(width / factor)), max(1, round(height / factor))
        return min(max(across * down, 4), 16_384)

    return patches


OPENAI_RATES = Rates(tiles, 10.0, 250.0)
ANTHROPIC_RATES = Rates(anthropic_pixels, 25.0, 250.0)
#: Two frames a second, merged in pairs, at most 768 patches a frame; films are mostly shown much smaller.
_QWEN_28 = Rates(qwen_patches(28), 25.0, 384.0)
_QWEN_32 = Rates(qwen_patches(32), 25.0, 384.0)


_QWEN = re.compile(r"qwen[^/]*(?:vl|omni)|qvq|qwen3\.[5-9]", re.IGNORECASE)


@lru_cache(maxsize=256)
def rates_for(model: str, usual: Rates) -> Rates:
    """Return what media cost with a model: known by its name's family, else as its API counts."""
    if not _QWEN.search(model):
        return usual
    return _QWEN_32 if "qwen3" in model.lower() else _QWEN_28


_PLAIN_RENDERING = Rendering()
#: Kinds of parts that an encoder reads.
_ENCODED = ("image", "audio", "video")


class PromptFrames(Frames):
    """Canonical bytes of one request, with what its media cost.

    Args:
        model: the model's public name.
        usual: rates of the request's API, for models that are not known by name.
        rendering: the model's.

    Attributes:
        model: as given.
        rendering: as given.
        arguments: what the client gives the model's chat template beside the chat.
        is_past: a user speaks behind what is framed now.
        media: names of the images, recordings and videos.
        optional: bytes of the parts that engines may leave out, by kind, whether they are framed or not.
    """

    __slots__ = (
        "_described",
        "_left",
        "_rates",
        "arguments",
        "is_past",
        "media",
        "model",
        "optional",
        "rendering",
    )

    def __init__(
        self, model: str, usual: Rates = OPENAI_RATES, rendering: Rendering = _PLAIN_RENDERING
    ) -> None:
        super().__init__()
        self.model, self._rates, self.rendering = model, rates_for(model, usual), rendering
        self.is_past, self.optional, self.media = False, dict[str, int](), list[str]()
        self._described, self._left = 0, MAX_REQUEST_TOKENS
        self.arguments: TemplateArguments = ()

    def _add_optional(self, kind: str, tag: bytes, content: bytes) -> None:
        self.optional[kind] = self.optional.get(kind, 0) + len(content)
        if kind not in self.rendering.dropped:
            self.add_bytes(tag, content)

    def add_reasoning(self, text: str) -> None:
        """Add what was thought (``G``), unless prompts of the model lack it."""
        kind = PAST_REASONING if self.is_past else REASONING
        self._add_optional(kind, b"G", text.encode("utf-8", "replace"))

    def add_tools(self, tools: Iterable[object], choice: object) -> None:
        """Add tools (``T``), but for those that the choice rules out where engines leave them out.

        Args:
            tools: as the chat API has them.
            choice: ``tool_choice``: ``none``, or an object that names one, in the words of any API.

        Raises:
            ClientError: as `add_described`.
        """
        name, none = _name(choice), choice in ("none", {"type": "none"})
        for tool in tools:
            if none or (isinstance(name, str) and _name(tool) != name):
                self.count_values()
                self._add_optional(UNCHOSEN_TOOLS, b"T", described(tool))
            else:
                self.add_described(b"T", tool)

    def add_call(self, call: dict[str, Any]) -> None:
        """Add a call (``K``).

        Raises:
            ClientError: as `add_described`.
        """
        self.count_values()
        self.add_bytes(b"K", spell(read_call(call, with_id=self.rendering.prints_ids)))

    def add_id(self, text: object) -> None:
        """Add the id of the call that a result is of (``I``), where prompts hold it."""
        if self.rendering.prints_ids:
            self.add_text(b"I", text if isinstance(text, str) else "")

    def add_part(self, part: object, kind: str = "") -> None:
        """Add a part that is not text, as its API spells it.

        Args:
            part: the part: an object, or the URL or base64 itself.
            kind: what it is, where the part does not say (``type``): ``image``, ``audio``, ``video`` or
                ``embeds``.

        Raises:
            ClientError: as `describe`.
        """
        self.add_media(*self.describe(part, kind))

    def words(self, media: Iterable[Part]) -> list[int]:
        """Return words for media among token ids, one after the other.

        Raises:
            ClientError: as `describe`.
        """
        return [word for part in media for word in media_words(*self.describe(*part))]

    def describe(self, part: object, kind: str = "") -> tuple[bytes, int]:
        """Return identity and cost in tokens of a part; the cost is taken from the request's share.

        Raises:
            ClientError: 400, it is nested too deeply, or more than `MAX_PARTS` came.
        """
        self._described += 1
        if self._described > MAX_PARTS:
            raise invalid(f"more than {MAX_PARTS} media and parts of unknown kinds")
        payload = _payload(part, _MAX_DEPTH)
        if isinstance(part, dict):
            said = part.get("type")
            kind = kind or (
                said if isinstance(said, str) else next((key for key in part if key in _PAYLOADS), "")
            )
            named = part.get("uuid")
            if (
                isinstance(named, str) and named
            ):  # vLLM's name for it: the next turn may send that and no file
                part, payload = named, ""
        tokens = min(_tokens(kind, payload, part, self._rates), MAX_PART_TOKENS, max(self._left, 0))
        self._left -= tokens
        identity = _identity(kind, part, payload)
        if any(encoded in kind for encoded in _ENCODED):
            self.media.append(identity.decode())
        return identity, tokens


def _name(tool: object) -> object:
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    return function.get("name") if isinstance(function, dict) else None


def _payload(part: object, depth: int) -> str:
    """Return the thing itself, found at the places where APIs keep it; empty when it is nowhere."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not depth:
        return ""
    inner = [part[name] for name in _PAYLOADS if name in part]
    inner += [value for name, value in part.items() if isinstance(value, dict) and name not in _IGNORED]
    return next((found for value in inner if (found := _payload(value, depth - 1))), "")


def _identity(kind: str, part: object, payload: str) -> bytes:
    """Return a name of 32 hexadecimal digits for kind, content and everything beside it."""
    content = payload.partition(",")[2] if payload.startswith("data:") else _object(payload)
    name = xxhash.xxh3_128(content.encode("utf-8", "replace"))
    try:
        name.update(_ENCODER.encode([kind, _beside(part, payload)]))
    except RecursionError:
        raise invalid("nested too deeply") from None
    return name.hexdigest().encode()


def _object(address: str) -> str:
    """Return an object's address without the query of a presigned URL, which is made anew each time."""
    head, _, query = address.partition("?")
    return head if query and "://" in head[:16] and _SIGNATURE.search(query) else address


def _beside(part: object, payload: str) -> object:
    """Return the part without its payload, which saves a copy of megabytes, and without marks for caching."""
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
        return math.ceil((_UNSEEN_AUDIO_S if file is None else _sound_s(file)) * rates.audio_per_s)
    if "video" in kind:
        seconds = _UNSEEN_VIDEO_S if file is None else len(file) / _VIDEO_BYTES_PER_S
        return math.ceil(seconds * rates.video_per_s)
    if "image" in kind or "screenshot" in kind:
        low = _low(part)
        size = (image_size(file) if file else None) or ((512, 512) if low else _UNSEEN_IMAGE)
        return rates.image(*size, low)
    if kind == "embeds":
        return math.ceil(len(file or "") / _EMBEDDING_BYTES)
    if "file" in kind or "document" in kind:
        return _PAGE_TOKENS * min(max(1, round(len(file or "") / _PAGE_BYTES)), _MAX_PAGES)
    return 0  # kinds of parts that are not known cost what their name costs


def _inline(payload: str) -> Base64File | None:
    """Return the file, when it is in the body: a data URL, or a text too long for an address or a name."""
    if payload.startswith("data:"):
        return Base64File(payload[payload.find(",", 0, 256) + 1 :])
    return Base64File(payload) if len(payload) > _LONGEST_NAME and "://" not in payload[:16] else None


def _low(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    inner = part.get("image_url")
    return "low" in (part.get("detail"), inner.get("detail") if isinstance(inner, dict) else None)


def _sound_s(file: Base64File) -> float:
    """Return the seconds of a recording; WAV files say how many bytes a second has (``fmt``, first chunk)."""
    head = file.read(0, 32)
    rate = int.from_bytes(head[28:32], "little") if head[8:16] == b"WAVEfmt " else 0
    return len(file) / (rate or _AUDIO_BYTES_PER_S)
