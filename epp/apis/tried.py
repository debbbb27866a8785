"""Models that a client says it has tried for the same question, from a request header.

The header is a client's word: a comma list of names, kept short here and matched against the pool's own names
by whoever uses it. What no endpoint is called changes nothing, and a client that lies worsens its own answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Request header: models that served earlier attempts, separated by commas.
TRIED_HEADER: Final = "x-epp-tried-models"
#: Request header: what kind of work a prompt is, by a name of the capability file.
TASK_HEADER: Final = "x-epp-task"
#: Of a longer header nothing is read: no cluster has so many models.
MAX_HEADER_CHARS: Final = 4096
MAX_TRIED: Final = 32
_MAX_TASK_CHARS: Final = 64


def tried_models(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Names in the header, each once, sorted, the first `MAX_TRIED` of them; none of an absurd header."""
    text = headers.get(TRIED_HEADER)
    if not text or len(text) > MAX_HEADER_CHARS:
        return ()
    names = dict.fromkeys(name for part in text.split(",", 4 * MAX_TRIED) if (name := part.strip()))
    return tuple(sorted(list(names)[:MAX_TRIED]))


def task_of(headers: Mapping[str, str]) -> str:
    """The task that the header names, ``""`` for none."""
    task = headers.get(TASK_HEADER, "").strip()
    return task if len(task) <= _MAX_TASK_CHARS else ""
