"""Find the program that a request belongs to.

Owns what is remembered of programs, within bounds: by the key that the client gives (a session), by the
response that a request goes on from, and without either by the prompt: one that is longer than a prompt which
was answered, and begins with all blocks of it, goes on from it. What prompts have in common beyond that is a
template; a block after which several prompts went on ends one, and names no program.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from epp.schedule.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import RequestInfo

#: Programs by key, ends of prompts and responses that are remembered, each; some 300 bytes an entry.
MOST_PROGRAMS = 20_000

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Recent(OrderedDict[_Key, _Value], Generic[_Key, _Value]):
    """What was used of late."""

    def use(self, key: _Key, value: _Value) -> _Value | None:
        """Keep a value as the last used; return that of the entry that goes for it, if any."""
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False)[1] if len(self) > MOST_PROGRAMS else None


class ProgramBook:
    """Programs by what names them.

    Args:
        forgotten: called with a program that is too many.
    """

    def __init__(self, forgotten: Callable[[Program], None]) -> None:
        self._forgotten = forgotten
        self._keys = _Recent[tuple[int, str], Program]()
        self._turns = _Recent[str, Program]()
        self._responses = _Recent[int, Program]()
        self._ends = _Recent[int, tuple[Program, int]]()  # last block of an answered prompt -> and its tokens
        self._gone_on = _Recent[int, bool]()  # ends that a prompt went on from

    def find(self, request: RequestInfo) -> Program:
        """Return the program of a request, a new one where none is known."""
        if request.program:
            key = request.namespace, request.program
            program = self._keys.get(key) or Program(known=True)
            if gone := self._keys.use(key, program):
                self._forgotten(gone)
            return program
        if request.previous_response:
            return self._responses.get(request.previous_response) or Program(known=True)
        return self._continued(request) or Program()

    def _continued(self, request: RequestInfo) -> Program | None:
        ends = self._ends
        for block in reversed(request.blocks) if ends else ():
            found = ends.get(block)
            if found is not None and request.prompt_tokens > found[1]:
                del ends[block]
                self._gone_on.use(block, True)
                found[0].known = True
                return found[0]
        return None

    def answered(self, program: Program, request: RequestInfo) -> None:
        """Note that a turn was answered, so that the next one is known by it."""
        if request.program or not request.blocks:
            return
        block = request.blocks[-1]
        if block not in self._gone_on and (gone := self._ends.use(block, (program, request.prompt_tokens))):
            self._forgotten(gone[0])

    def sent(self, program: Program, decision_id: str) -> None:
        """Note whose turn a decision is of."""
        self._turns.use(decision_id, program)

    def stored(self, decision_id: str, response: int) -> None:
        """Note that a turn's response is stored under a key (`epp.signals.stored_responses`)."""
        if (program := self._turns.get(decision_id)) is not None:
            program.known = True
            self._responses.use(response, program)
