"""Secret files that cannot be used: the error says why, and quotes neither their names nor what is in them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from epp.config.schema import Config, Prefix
from epp.errors import ConfigError
from epp.feeds.keep_alive import TokenFile
from epp.server.process import hash_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "s3cr3t"
UNUSABLE: dict[str, Callable[[Path], object]] = {
    "missing": lambda _: None,
    "short": lambda path: path.write_bytes(b"hunter2"),
    "folder": lambda path: path.mkdir(),
    "linked to itself": lambda path: path.symlink_to(path),
    "linked to no end": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("why", UNUSABLE)
@pytest.mark.parametrize("key", ["secret_file", "second_secret_file"])
def test_an_unusable_secret_is_refused_and_not_quoted(tmp_path: Path, why: str, key: str) -> None:
    UNUSABLE[why](tmp_path / NAME)
    (tmp_path / "good").write_bytes(b"0123456789abcdef")
    prefix = replace(Prefix(secret_file="good"), **{key: NAME})
    with pytest.raises(ConfigError) as error:
        hash_secrets(Config(prefix=prefix), tmp_path, "epp.yaml")
    assert str(error.value).startswith(f"epp.yaml: prefix.{key}: ")
    assert NAME not in str(error.value)
    assert "hunter2" not in str(error.value)


async def test_a_token_that_is_no_text_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xe9hunter2")
    token = TokenFile(str(tmp_path / "token"))
    following = asyncio.ensure_future(token.follow())
    await token._read.wait()
    following.cancel()
    with pytest.raises(OSError, match="cannot be read: it is no text") as error:
        token.headers()
    assert "e9" not in str(error.value)
