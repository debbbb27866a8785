"""Models that a client says it has tried for the same question, from a request header.

The header is a client's word: a comma list of names, kept short here and matched against the pool's own names
by whoever uses it. What no endpoint is called changes nothing, and a client that lies worsens its own answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from epp.apis.types import Headers

#: Request header: models that served earlier attempts, separated by commas.
TRIED_HEADER: Final = "x-epp-tried-models"
#: Request header: what kind of work a prompt is, by a name of the capability file.
TASK_HEADER: Final = "x-epp-task"
MAX_TRIED: Final = 32
_MAX_TASK_CHARS: Final = 64


def tried_models(headers: Headers) -> tuple[str, ...]:
    """Return the names in the header, each once, sorted, the first `MAX_TRIED` of them."""
    names = {name.strip() for name in headers.get(TRIED_HEADER, "").split(",")} - {""}
    return tuple(sorted(names)[:MAX_TRIED])


def task_of(headers: Headers) -> str:
    """Return the task that the header names, ``""`` for none."""
    task = headers.get(TASK_HEADER, "").strip()
    return task if len(task) <= _MAX_TASK_CHARS else ""
