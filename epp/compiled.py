"""The optional compiled core: whether it is in place, and what its classes need at run time.

Owns nothing. A wheel built with ``EPP_COMPILE=1`` has extension modules beside some sources, which Python
then takes instead of them; they decide the same (docs/performance.md).
"""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from importlib.util import find_spec
from typing import Any


def core() -> str:
    """``compiled`` or ``interpreted``, whichever this process decides with."""
    found = find_spec("epp.decide.picker")
    return "interpreted" if found is None or (found.origin or "").endswith(".py") else "compiled"


def fields_of(name: str, *given: tuple[Any, ...]) -> dict[str, Any]:
    """What `dataclasses.fields` and `replace` ask of a class whose dataclass was spelled out.

    Args:
        name: the class.
        given: of each field its name, and where it has a default that, and whether to call it.
    """
    described = [(one[0], object, _default(*one[1:])) if one[1:] else (one[0], object) for one in given]
    return {one.name: one for one in fields(make_dataclass(name, described))}


def _default(value: Any, made: bool) -> Any:
    if made:
        return field(default_factory=value)
    known = field()
    known.default = value
    return known
