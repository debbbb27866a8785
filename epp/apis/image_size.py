"""Pixels of an image from the first bytes of its file, base64 as it came, without decoding the image.

Owns the file headers of PNG, JPEG, GIF and WebP. Work is bounded: a few small reads at known places, at most
`_MAX_SEGMENTS` of them; whatever is torn, unknown or absurd has no size.
"""

from __future__ import annotations

import binascii
from struct import unpack_from

_MAX_SEGMENTS = 64
#: Start-of-frame markers of JPEG (ITU-T T.81, table B.1), all of which carry the size.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
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
    """Return width and height in pixels, None when they cannot be told."""
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
    for _ in range(_MAX_SEGMENTS):
        mark, marker, size, _, height, width = unpack_from(">BBHBHH", file.read(offset, 9))
        if mark != 0xFF:
            break
        if marker in _FRAMES:
            return width, height
        offset += 1 if marker == 0xFF else 2 + size  # fill bytes may precede a marker
    return 0, 0
