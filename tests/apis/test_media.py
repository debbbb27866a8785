"""Media: who they are, how large, what they cost, within bounds."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from epp.apis.media import (
    ANTHROPIC_RATES,
    MAX_PART_TOKENS,
    Base64File,
    PromptFrames,
    anthropic_pixels,
    image_size,
    qwen_patches,
    tiles,
)
from tests.kit.apis import png_header


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)


def jpeg(width: int, height: int, *, before: int = 3, fill: int = 0) -> bytes:
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", 60_002) + bytes(60_000) for _ in range(before))
    frame = b"\xff" * fill + b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + segments + frame + bytes(100)


def webp(kind: bytes, data: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + data.ljust(40, b"\0")


FILES = {
    "png": base64.b64decode(png_header(640, 480)),
    "gif": gif(640, 480),
    "jpeg": jpeg(640, 480),
    "jpeg with fill bytes": jpeg(640, 480, fill=3),
    "webp lossy": webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 640 | 0x4000, 480)),
    "webp lossless": webp(b"VP8L", b"\x2f" + (639 | 479 << 14).to_bytes(4, "little")),
    "webp extended": webp(b"VP8X", bytes(4) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")),
}


@pytest.mark.parametrize("name", FILES)
def test_sizes_are_read_from_the_files_themselves(name: str) -> None:
    text = b64(FILES[name])
    assert image_size(Base64File(text)) == (640, 480)
    assert image_size(Base64File(text.rstrip("="))) == (640, 480)


@pytest.mark.parametrize(
    ("rule", "size", "low", "tokens"),
    [
        (tiles, (1024, 1024), False, 765),  # the guide's own examples
        (tiles, (2048, 4096), False, 1105),
        (tiles, (4096, 8192), True, 85),
        (anthropic_pixels, (1000, 1000), False, 1334),
        (anthropic_pixels, (20_000, 20_000), False, 1600),
        (qwen_patches(28), (1024, 1024), False, 1369),
        (qwen_patches(32), (1024, 1024), False, 1024),
    ],
)
def test_what_images_cost(rule: Any, size: tuple[int, int], low: bool, tokens: int) -> None:
    assert rule(*size, low) == tokens


@pytest.mark.parametrize(
    ("model", "unseen"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", 1369),
        ("Qwen/Qwen2.5-Omni-7B", 1369),
        ("Qwen/Qwen3-VL-235B-A22B", 1024),
        ("Qwen/Qwen2.5-7B-Instruct", 765),
        ("llava", 765),
    ],
)
def test_the_model_says_what_media_cost(model: str, unseen: int) -> None:
    assert (
        PromptFrames(model).describe({"type": "image_url", "image_url": {"url": "https://x/a"}})[1] == unseen
    )


WAV = b"RIFF" + bytes(4) + b"WAVEfmt " + bytes(4) + struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "input_audio", "input_audio": {"data": b64(WAV + bytes(320_000)), "format": "wav"}}, 101),
        ({"type": "audio_url", "audio_url": {"url": "https://x/a.wav"}}, 300),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + b64(bytes(999_999))}}, 1000),
        ({"type": "file", "file": {"file_id": "file-1"}}, 2250),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64," + b64(bytes(500_000))}},
            22_118,
        ),
        ({"type": "image_url", "image_url": {"url": "https://x/a", "detail": "low"}}, 85),
        ({"type": "image_url", "image_url": "data:image/png;base64," + png_header(512, 512)}, 255),
    ],
)
def test_what_parts_cost(part: dict[str, Any], tokens: int) -> None:
    assert PromptFrames("m").describe(part)[1] == min(tokens, MAX_PART_TOKENS)


def identity(part: Any) -> bytes:
    return PromptFrames("m", ANTHROPIC_RATES).describe(part)[0]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png_header(8, 8)}}


def test_content_is_identity() -> None:
    assert identity(IMAGE) == identity({**IMAGE, "cache_control": {"type": "ephemeral"}})
    assert identity(IMAGE) == identity(json.loads(json.dumps(IMAGE)))
    other = {**IMAGE, "source": {**IMAGE["source"], "data": png_header(8, 8, b"x")}}  # type: ignore[dict-item]
    assert identity(IMAGE) != identity(other)
    addresses = [{"type": "image_url", "image_url": {"url": f"https://x/{name}"}} for name in "ab"]
    assert identity(addresses[0]) != identity(addresses[1])
    low = {"type": "image_url", "image_url": {"url": "https://x/a", "detail": "low"}}
    assert identity(low) != identity(addresses[0])


@pytest.mark.parametrize("kind", ["image_url", "video_url", "input_audio", "image_embeds"])
def test_a_part_with_a_name_stays_what_it_is_without_its_file(kind: str) -> None:
    """vLLM keys its caches by `uuid`; once it has the file, the next turns may send the name alone."""

    def framed(**fields: Any) -> bytes:
        frames = PromptFrames("m")
        frames.add_part({"type": kind, **fields})
        return frames.bytes()

    small, large = (f"data:image/png;base64,{png_header(side, side)}" for side in (64, 2048))
    named = framed(**{kind: {"url": small}}, uuid="a")
    assert named == framed(**{kind: {"url": large}}, uuid="a") == framed(**{kind: None}, uuid="a")
    assert named != framed(**{kind: None}, uuid="b")
    unnamed = [framed(**{kind: {"url": url}}, uuid=none) for url in (small, large) for none in (None, "")]
    assert len({named, *unnamed}) == 5
