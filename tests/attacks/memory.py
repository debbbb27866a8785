"""Floods of what a picker holds, where it may have little memory."""

from __future__ import annotations

import resource

from tests.attacks.pickers import alone

LIMIT_BYTES = 512 << 20
_FLOODS = ("partial-bodies", "waiting-headers", "zero-window")


def flooded() -> tuple[int, list[str]]:
    """Flood a picker with the default budget; its memory at most, in bytes, and the calls that failed beside the floods."""
    most_bytes, failures = 0, []
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, hard))  # what is started has it, too
    with alone(request={}) as rig:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        for name in _FLOODS:
            row = rig.run(name, seconds=5.0, connections=8)
            most_bytes = max(most_bytes, row.rss_bytes[1])
            failures += [f"{name}: {why}" for _, why in row.failures] + [row.cut_short] * bool(row.cut_short)
    return most_bytes, failures
