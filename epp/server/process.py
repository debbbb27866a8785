"""What a process has once: clock, decision ids, hash key."""

from __future__ import annotations

import contextlib
import logging
import re
import resource
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from epp.feeds.files import read_secret
from epp.prefix_cache.index import MAX_TOKENS
from epp.prefix_cache.state_slots import StateSlots
from epp.prefix_cache.warm_index import WarmIndex

if TYPE_CHECKING:
    from epp.config.schema import Config, Prefix
    from epp.prefix_cache.blocks import BlockHasher

log = logging.getLogger(__name__)

#: Workers of a host: a decision's id names its worker in two digits.
MAX_WORKERS = 256
#: Key of block hashes of this process and those forked from it, where the deployment has none.
_OWN_SECRET = secrets.token_bytes(32)


#: Where a container's memory limit is read: cgroup v2, then v1.
_MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
#: Part of the memory limit that may be held: what holds it takes up to twice as much for a moment.
_HELD_PART = 4
_DECISION_ID = re.compile(r"([0-9a-f]{16})-[0-9a-f]+")


class SystemClock:
    """`epp.clock.Clock` of this machine."""

    mono_s, wall_s = staticmethod(time.monotonic), staticmethod(time.time)


def allowed_held_bytes(wanted: int, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Reduce `request.max_held_body_bytes` to a quarter of the memory that this process may have.

    Args:
        wanted: as configured.
        cgroup: where the container's limits are.
    """
    limits = [resource.getrlimit(resource.RLIMIT_DATA)[0]]
    for name in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int((cgroup / name).read_text()))
    limit = min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=wanted * _HELD_PART)
    allowed = min(wanted, limit // _HELD_PART)
    if allowed < wanted:
        log.warning("%d bytes are held at most instead of %d: the memory limit is %d", allowed, wanted, limit)
    return allowed


class DecisionIds:
    """Ids of this process: a prefix, by which they are unique over processes, and a counter.

    Args:
        worker: of several on this host; their number ends the prefix, the rest is random.

    Attributes:
        prefix: of all ids of this process.
    """

    def __init__(self, worker: int = 0) -> None:
        self.prefix = f"{secrets.token_hex(7)}{worker:02x}"
        self._last = 0

    @staticmethod
    def worker_of(decision_id: str) -> int | None:
        """Tell which worker of a host made an id; None where it is no id."""
        try:
            return int(decision_id[14:16], 16)
        except ValueError:
            return None

    def maker_of(self, decision_id: str) -> str | None:
        """Name the other process that made an id by its prefix; None for this one, or where it is no id."""
        found = _DECISION_ID.fullmatch(decision_id)
        return None if found is None or found[1] == self.prefix else found[1]

    def __call__(self) -> str:
        """Make the next id."""
        self._last += 1
        return f"{self.prefix}-{self._last:x}"

    def __contains__(self, decision_id: str) -> bool:
        """Tell whether this process made an id."""
        _, _, number = decision_id.partition("-")
        try:
            count = int(number, 16)
        except ValueError:
            return False
        return 0 < count <= self._last and decision_id == f"{self.prefix}-{count:x}"


def hash_secrets(config: Config, base: Path, source: str) -> list[bytes]:
    """Read the keys of block hashes: `prefix.secret_file` and, where there is one, the second file's.

    Without `prefix.secret_file` it is a random one, which is logged.

    Raises:
        ConfigError: as `read_secret` says.
    """
    key, name = "prefix.secret_file", config.prefix.secret_file
    if not name:
        lost = ["conversations move to other endpoints when it restarts, and between pickers"]
        if config.records.folder:
            lost.append("the prefix index cannot be restored from records")
        log.warning("%s is not set, so this process hashes by a key of its own: %s", key, "; ".join(lost))
        return [_OWN_SECRET]
    files = {key: name, "prefix.second_secret_file": config.prefix.second_secret_file}
    return [read_secret(base / name, key, source) for key, name in files.items() if name]


def index_of(settings: Prefix, hasher: BlockHasher) -> WarmIndex:
    """Make the prefix index as configured."""
    return WarmIndex(
        capacity_tokens=settings.capacity_tokens,
        max_tokens=sys.maxsize if settings.capacity_stated else MAX_TOKENS,
        name_block=hasher.export_id,
        coarse_blocks=hasher.coarse_blocks,
        states=StateSlots.of(settings.state_slots, settings.chunk_tokens),
    )
