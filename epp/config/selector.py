"""Label selectors of Kubernetes: is this text one that an API server accepts?

Matching is the server's work; a mistake should be told at start, not by a watch that is refused for ever.
"""

from __future__ import annotations

import re

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/"
_KEY = rf"(?:{_PREFIX})?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_VALUES = rf"\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:==|=|!=)\s*{_VALUE}|\s+(?:in|notin)\s*{_VALUES})?)\s*"
)
_COMMA = re.compile(r",(?![^(]*\))")  # commas inside parentheses separate values


def check_selector(text: str) -> None:
    """Refuse what is no label selector.

    Args:
        text: requirements joined by commas: ``key=value``, ``key!=value``, ``key in (a, b)``,
            ``key notin (a, b)``, ``key``, ``!key``.

    Raises:
        ValueError: naming the requirement that is wrong.
    """
    for requirement in _COMMA.split(text):
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(
                f"{requirement.strip()!r} is not a requirement of a label selector; "
                "write e.g. 'app=vllm,tier in (gold, silver),!canary'"
            )
