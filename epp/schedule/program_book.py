"""Find the program that a request belongs to.

Owns the names of programs, within bounds: the key that the client gives (a session), the response that a
request goes on from, and without either the prompt: one that is longer than a prompt which was answered, and
begins with all blocks of it, goes on from it. What prompts have in common beyond that is a template: where
two prompts went on from an answered one in ways of their own, it ends one, and names no program.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.schedule.programs import Program
from epp.signals.stored_responses import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import RequestInfo

#: Names that are remembered, some 400 bytes each.
MOST_NAMES = 40_000


@dataclass(slots=True)
class _Named:
    """What a name stands for.

    Attributes:
        program: None for a template.
        tokens: of the prompt that ends with this block; prompts that go on from it are longer.
        next_prompt: the prompt that went on from it, 0 for none.
    """

    program: Program | None
    tokens: int = 0
    next_prompt: int = 0


class ProgramBook:
    """Programs by what names them.

    Args:
        forgotten: called with a program whose last name is one too many.
    """

    def __init__(self, forgotten: Callable[[Program], None]) -> None:
        self._forgotten = forgotten
        self._names = OrderedDict[int, _Named]()

    def find(self, request: RequestInfo) -> Program:
        """Return the program of a request, a new one where none is known."""
        if request.program:
            name = key_of(f"{request.namespace} {request.program}")
            return self.named(name) or self.name(Program(known=True), name)
        if request.previous_response:
            return self.named(request.previous_response) or Program(known=True)
        return self._continued(request) or Program()

    def named(self, name: int) -> Program | None:
        """Return the program of a name."""
        if (found := self._names.get(name)) is None:
            return None
        self._names.move_to_end(name)
        return found.program

    def name(self, program: Program, name: int, tokens: int = 0) -> Program:
        """Find a program by this name from now on, by older ones as well."""
        program.name = name
        return self._remember(program, name, tokens)

    def heard(self, name: int, told: int, prompt_tokens: int) -> Program | None:
        """Return a program that another picker told of, by its name or by the one that was told before.

        None where the name is a template's here: what is told next of the program has a name of its own.
        """
        if name in self._names:
            return self.named(name)
        before = self._names.get(told)
        if before is not None:
            before.next_prompt = before.next_prompt or name
        return self.name((before and before.program) or Program(known=not prompt_tokens), name, prompt_tokens)

    def prompt_tokens(self, name: int) -> int:
        """Return how long the prompt was that a name is of, 0 for a key."""
        return self._names[name].tokens if name in self._names else 0

    def _remember(self, program: Program, name: int, tokens: int = 0) -> Program:
        self._names[name] = _Named(program, tokens)
        self._names.move_to_end(name)
        if len(self._names) > MOST_NAMES:
            name, gone = self._names.popitem(last=False)
            if gone.program is not None and gone.program.name == name:
                self._forgotten(gone.program)
        return program

    def _continued(self, request: RequestInfo) -> Program | None:
        for block in reversed(request.blocks) if self._names else ():
            found = self._names.get(block)
            if found is None or found.program is None or request.prompt_tokens <= found.tokens:
                continue
            if found.next_prompt in (0, request.prompt_hash):  # the same again: it was refused before
                found.next_prompt, found.program.known = request.prompt_hash, True
                return found.program
            found.program = None
        return None

    def answered(self, program: Program, request: RequestInfo) -> None:
        """Note that a turn was answered, so that the next one is known by it."""
        if request.program or not request.blocks:
            return
        found = self._names.get(request.blocks[-1])
        if found is None or not found.next_prompt:
            self.name(program, request.blocks[-1], request.prompt_tokens)

    def sent(self, program: Program, request: RequestInfo, decision_id: str) -> None:
        """Note whose turn a decision is of, whose response is to be stored."""
        if request.stores and not request.program:
            self._remember(program, key_of(decision_id))

    def stored(self, decision_id: str, response: int) -> Program | None:
        """Note that a turn's response is stored under a key; return its program, None for an unknown one."""
        if (program := self.named(key_of(decision_id))) is not None:
            program.known = True
            self.name(program, response)
        return program
