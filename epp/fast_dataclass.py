"""Frozen dataclasses for what every request makes: mypy guards them, run time pays nothing for it.

Owns the decorator. The constructor of a frozen dataclass sets each field by a call of `object.__setattr__`,
about half a microsecond for each cold; a request makes some twenty values of two hundred fields in all. Where
mypy looks, this is `dataclasses.dataclass` itself, so an assignment to a field is an error; at run time it is
a class with slots, equal and hashed by its fields, which nothing keeps from being changed. For values of the
request path alone: what is made once, or handed to code of others, is frozen for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as fast_dataclass
else:
    from dataclasses import dataclass

    def fast_dataclass(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        """As ``dataclass(frozen=True, slots=True)``: other arguments make no sense here.

        Raises:
            TypeError: others were given.
        """
        if not (frozen and slots):
            raise TypeError("what changes is an ordinary dataclass")
        return dataclass(slots=True, unsafe_hash=True)


__all__ = ["fast_dataclass"]
