"""Media: who they are, how large, what they cost, within bounds."""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.apis.canonical import MEDIA_BYTES_PER_TOKEN, media_bytes, media_words
from epp.apis.image_size import Base64File, image_size
from epp.apis.media import (
    ANTHROPIC_RATES,
    MAX_PART_TOKENS,
    MAX_REQUEST_TOKENS,
    OPENAI_RATES,
    PromptFrames,
    anthropic_pixels,
    qwen_patches,
    rates_for,
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


@pytest.mark.parametrize("name", FILES)
def test_a_torn_file_has_no_size_or_the_right_one(name: str) -> None:
    text = b64(FILES[name][:300])
    for length in range(len(text)):
        assert image_size(Base64File(text[:length])) in (None, (640, 480))


@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\xff\xd8", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBP"]),
)
def test_any_bytes_have_a_size_or_none(data: bytes, head: bytes) -> None:
    size = image_size(Base64File(b64(head + data)))
    assert size is None or (size[0] > 0 and size[1] > 0)


@given(st.text(max_size=60))
def test_any_text_has_a_size_or_none(text: str) -> None:
    assert image_size(Base64File(text)) is None or text


@given(st.binary(max_size=100), st.integers(0, 120), st.integers(0, 40))
def test_files_are_read_anywhere(data: bytes, offset: int, size: int) -> None:
    assert Base64File(b64(data)).read(offset, size) == data[offset : offset + size]


@pytest.mark.parametrize("endless", [b"\xff\xe1\x00\x02" * 100_000, b"\xff\xff" * 100_000])
def test_a_jpeg_of_segments_without_end_is_given_up(endless: bytes) -> None:
    reads = []

    class Counted(Base64File):
        def read(self, offset: int, size: int) -> bytes:
            reads.append(size)
            return super().read(offset, size)

    assert image_size(Counted(b64(b"\xff\xd8" + endless))) is None
    assert len(reads) < 70
    assert max(reads) <= 30


@pytest.mark.parametrize(
    ("rule", "size", "low", "tokens"),
    [
        (tiles, (1024, 1024), False, 765),  # the guide's own examples
        (tiles, (2048, 4096), False, 1105),
        (tiles, (4096, 8192), True, 85),
        (tiles, (512, 512), False, 255),
        (anthropic_pixels, (200, 200), False, 54),
        (anthropic_pixels, (1000, 1000), False, 1334),
        (anthropic_pixels, (20_000, 20_000), False, 1600),
        (qwen_patches(28), (1024, 1024), False, 1369),
        (qwen_patches(32), (1024, 1024), False, 1024),
        (qwen_patches(28), (1, 1), False, 4),
        (qwen_patches(28), (100_000, 100_000), False, 16_384),
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
    assert rates_for(model, OPENAI_RATES).unseen_image == unseen
    assert (
        PromptFrames(model).describe({"type": "image_url", "image_url": {"url": "https://x/a"}})[1] == unseen
    )


QWEN = re.compile(r"qwen[^/]*(?:vl|omni)|qvq|qwen3\.[5-9]", re.IGNORECASE)
WORDS = ("qwen", "Qwen3", "qwen3.5", ".", "/", "-", "VL", "vl", "omni", "qvq", "2", "x", "\n")


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_a_family_is_known_wherever_a_name_tells_it(words: list[str]) -> None:
    name = "".join(words)
    assert (rates_for(name, OPENAI_RATES) is not OPENAI_RATES) == bool(QWEN.search(name))


def test_a_name_is_looked_at_once_however_often_it_tells_a_family() -> None:
    assert rates_for("qwen" * 500_000, OPENAI_RATES) is OPENAI_RATES
    assert rates_for("qwen" * 500_000 + "vl", OPENAI_RATES).unseen_image == 1369


WAV = b"RIFF" + bytes(4) + b"WAVEfmt " + bytes(4) + struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "input_audio", "input_audio": {"data": b64(WAV + bytes(320_000)), "format": "wav"}}, 101),
        ({"type": "input_audio", "input_audio": {"data": b64(bytes(159_999)), "format": "mp3"}}, 100),
        ({"type": "audio_url", "audio_url": {"url": "https://x/a.wav"}}, 300),
        ({"type": "video_url", "video_url": {"url": "https://x/a.mp4"}}, 2500),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + b64(bytes(999_999))}}, 1000),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}, 0),
        ({"type": "file", "file": {"file_id": "file-1"}}, 2250),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64," + b64(bytes(500_000))}},
            22_118,
        ),
        ({"type": "image_url", "image_url": {"url": "https://x/a", "detail": "low"}}, 85),
        ({"type": "input_image", "file_id": "file-1"}, 765),
        ({"type": "image_url", "image_url": "data:image/png;base64," + png_header(512, 512)}, 255),
        ({"type": "something new", "data": "A" * 200}, 0),
        ({}, 0),
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


def test_the_way_a_data_url_names_its_type_is_not_identity() -> None:
    one, two = (
        {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{png_header(8, 8)}"}}
        for kind in ("image/png", "image/png;charset=utf-8")
    )
    assert identity(one) == identity(two)


def test_a_frame_is_as_long_as_its_tokens() -> None:
    framed = PromptFrames("m")
    framed.add_text(b"C", "look")
    framed.add_part({"type": "image_url", "image_url": {"url": "https://x/a"}})
    framed.add_text(b"C", "and")
    assert media_bytes(framed.bytes()) == 765 * MEDIA_BYTES_PER_TOKEN
    assert media_bytes(b"") == media_bytes(b"\xffRuser\xffChi") == 0


def test_one_request_claims_no_more_than_its_share() -> None:
    framed = PromptFrames("m")
    for number in range(2000):
        framed.add_part({"type": "image_url", "image_url": {"url": f"https://x/{number}"}})
    canonical = framed.bytes()
    assert MAX_REQUEST_TOKENS * 4 <= media_bytes(canonical) < MAX_REQUEST_TOKENS * 4 + 2000 * 32
    assert len(set(canonical.split(b"\xffM"))) == 2001, "all of them are still told apart"


@given(st.integers(0, 40))
def test_words_of_media_are_no_token_ids(count: int) -> None:
    words = media_words(identity(IMAGE), count)
    assert len(words) == count
    assert all(0x8000_0000 <= word < 0xFFFF_FFFF for word in words)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["url", "data", "image_url", "source", "type", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["", "image", "audio", "video", "file", "odd"]))
def test_any_part_has_a_name_and_a_bounded_cost(part: Any, kind: str) -> None:
    name, tokens = PromptFrames("m").describe(part, kind)
    assert len(name) == 32
    assert 0 <= tokens <= MAX_PART_TOKENS


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
