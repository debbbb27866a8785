"""Old names of keys, which this version still reads, with a warning for each."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

#: Old key -> its name, in the same section. Read until version 0.2.
RENAMED = {("cluster",): "nats", ("policy", "tie_band"): "tolerance"}


def rename_keys(value: object, source: str) -> object:
    """Rename the keys of a file's plain values in place; where both names have a section, merge the two."""
    for (*path, old), name in RENAMED.items():
        section = value
        for word in path:
            section = section.get(word) if isinstance(section, dict) else None
        if isinstance(section, dict) and old in section:
            _warn(source, (*path, old), name)
            before, now = section.pop(old), section.get(name)
            if isinstance(before, dict) and isinstance(now, dict):
                now = before | now
            section[name] = before if now is None else now
    return value


def rename_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of an environment variable's key, renamed."""
    for old, name in RENAMED.items():
        if words[: len(old)] == old:
            _warn("environment", old, name)
            return (*old[:-1], name, *words[len(old) :])
    return words


def _warn(source: str, old: tuple[str, ...], name: str) -> None:
    log.warning("%s: key %s is called %s now; it is read until version 0.2", source, ".".join(old), name)
