"""What the doctor reads of answers that are none."""

from __future__ import annotations

import pytest

from epp.server.doctor.fetch import Answer


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": "\xff"}', b"\xff"])
def test_what_is_no_json_is_none(body: bytes) -> None:
    assert Answer(200, body).json() is None
