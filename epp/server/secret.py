"""The key of all block hashes: the deployment's, from a file, or one of the process."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from epp.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.schema import Config

log = logging.getLogger(__name__)


def hash_secret(config: Config, base: Path, source: str) -> bytes:
    """The bytes of `prefix.secret_file`; random ones where it is not set, which is logged.

    Raises:
        ConfigError: the file cannot be read, or holds fewer than 16 bytes.
    """
    key, name = "prefix.secret_file", config.prefix.secret_file
    if not name:
        lost = ["conversations move to other endpoints when it restarts, and between pickers"]
        if config.records.folder:
            lost.append("the prefix index cannot be restored from records")
        log.warning("%s is not set, so this process hashes by a key of its own: %s", key, "; ".join(lost))
        return secrets.token_bytes(32)
    try:
        secret = (base / name).read_bytes().strip()
    except OSError as error:
        raise ConfigError(source, key, str(error), "create it, e.g. 32 random bytes") from error
    if len(secret) < 16:
        raise ConfigError(source, key, f"{name} holds fewer than 16 bytes")
    return secret
