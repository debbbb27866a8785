"""Pixels of an image from the first bytes of its file, base64 as it came, without decoding the image.

Owns the file headers of PNG, JPEG, GIF and WebP. Work is bounded: a few small reads at known places, at most
`_MAX_SEGMENTS` of them; whatever is torn, unknown or absurd has no size.
"""

from __future__ import annotations

import binascii

_MAX_SEGMENTS = 64
#: Start-of-frame markers of JPEG (ITU-T T.81, table B.1), all of which carry the size.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: No encoder in use writes larger sides; larger numbers are garbage.
_MAX_SIDE = 1 << 20


class Base64File:
    """Random access to the file that a base64 text holds.

    Args:
        text: base64, without line breaks; nothing of it is copied but what is read.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file, fewer than asked for at its end and none where the text is not base64."""
        first = offset // 3 * 4
        last = -(-(offset + size) // 3) * 4
        piece = self._text[first:last]
        try:
            found = binascii.a2b_base64(piece + "=" * (-len(piece) % 4))
        except (binascii.Error, ValueError):
            return b""
        skip = offset % 3
        return found[skip : skip + size]

    def __len__(self) -> int:
        """Bytes of the file, to within two."""
        return len(self._text) * 3 // 4


def image_size(file: Base64File) -> tuple[int, int] | None:
    """Width and height in pixels, None when they cannot be told."""
    head = file.read(0, 30)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = _pair(head[16:24], 4, "big")
    elif head[:6] in (b"GIF87a", b"GIF89a"):
        size = _pair(head[6:10], 2, "little")
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _webp(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg(file)
    else:
        size = None
    return size if size and 0 < size[0] <= _MAX_SIDE and 0 < size[1] <= _MAX_SIDE else None


def _pair(data: bytes, width: int, order: str) -> tuple[int, int] | None:
    if len(data) < 2 * width:
        return None
    little = order == "little"
    first, second = (
        int.from_bytes(part, "little" if little else "big")
        for part in (data[:width], data[width : 2 * width])
    )
    return first, second


def _webp(head: bytes) -> tuple[int, int] | None:
    """The three kinds of WebP files (RFC 9649, sections 2.5 to 2.7); two bits on top of VP8's sides scale."""
    kind = head[12:16]
    if len(head) < 30:
        return None
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg(file: Base64File) -> tuple[int, int] | None:
    offset = 2
    for _ in range(_MAX_SEGMENTS):
        segment = file.read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        marker = segment[1]
        if marker == 0xFF:  # fill bytes may precede a marker
            offset += 1
            continue
        if marker in _FRAMES:
            size = _pair(segment[5:9], 2, "big")
            return (size[1], size[0]) if size else None
        offset += 2 + int.from_bytes(segment[2:4], "big")
    return None
