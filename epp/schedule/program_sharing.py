"""Share programs among pickers: what one tells of its active sets, and what it makes of what others tell.

Owns which changes are untold. Sets are soft state: who changed a program last tells of it, and again each
second while it is active; the version that counts more changes holds. A picker that dies leaves its programs
idle where they are; one that starts knows all of them within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.program_book import ProgramBook
    from epp.schedule.programs import Guard, Program, ProgramSets
    from epp.signals.datastore import Datastore

#: Programs in one message; the next one has the rest.
MOST_TOLD = 1000
#: For so long a turn is believed to run at another picker, which tells of it each second.
BELIEVED_S = 3.0

_Address = Annotated[str, Meta(max_length=300)]
_Gauge = Annotated[float, Meta(ge=0.0, le=1e12)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]


class ProgramState(Struct, array_like=True, frozen=True):
    """A program as a picker knows it; fields not told here are those of `Program`.

    Attributes:
        name: by which its next turn is found.
        told: the name by which it was told before.
        prompt_tokens: its next prompt is longer, where it has no key.
        endpoint: address of its home.
        busy: the picker has a turn of it at an engine.
        idle_s: for how long it has had none.
        ran_s: for how long it has had its place.
    """

    name: int
    told: int
    prompt_tokens: _Count
    endpoint: _Address
    context_tokens: _Gauge
    shared_tokens: _Gauge
    active: bool
    busy: bool
    idle_s: _Gauge
    ran_s: _Gauge
    version: _Count


class ProgramsState(Struct, array_like=True, frozen=True):
    """What a picker tells of programs.

    Attributes:
        programs: those that changed.
        work_s: what its guard counts.
        draining: address of the engine that it drains, ``""`` for none.
        others: tokens of its other traffic by engine; None for no change.
    """

    programs: Annotated[list[ProgramState], Meta(max_length=MOST_TOLD)]
    work_s: _Gauge
    draining: _Address
    others: dict[_Address, _Gauge] | None


class ProgramSharing:
    """One picker's part.

    Args:
        book: names of programs.
        sets: who has a place.
        guard: hears what turns cost elsewhere.
        datastore: knows addresses.
        tell: asks for `state` to be told soon.

    Attributes:
        draining: slots that other pickers drain, by picker.
    """

    def __init__(
        self,
        book: ProgramBook,
        sets: ProgramSets,
        guard: Guard,
        datastore: Datastore,
        tell: Callable[..., None],
    ) -> None:
        self._book, self._sets, self._guard, self._datastore = book, sets, guard, datastore
        self._tell = tell
        self._untold: dict[Program, None] = {}
        self.draining: dict[str, int] = {}
        sets.on_change = self._changed

    def _changed(self, program: Program) -> None:
        program.version, program.theirs = program.version + 1, False
        if program.name and not self._sets.is_small(program, program.home):
            self._untold[program] = None
            self._tell()

    def state(self, draining: int, now_s: float, *, whole: bool) -> ProgramsState:
        """Tell what changed; with ``whole`` all active programs of this picker, and its other traffic."""
        engines, address_of = self._sets.engines, self._datastore.address_of
        for engine in engines.values() if whole else ():
            self._untold |= dict.fromkeys(one for one in engine.active if one.running or not one.theirs)
        untold = [one for one in self._untold if one.name]
        self._untold = dict.fromkeys(untold[MOST_TOLD:])
        if self._untold:
            self._tell()
        told = [self._state(one, now_s) for one in untold[:MOST_TOLD]]
        others = {address_of(slot) or "": engine.sent_others(now_s) for slot, engine in engines.items()}
        return ProgramsState(
            told, self._guard.work_s(now_s), address_of(draining) or "", others if whole else None
        )

    def _state(self, one: Program, now_s: float) -> ProgramState:
        told, one.told = one.told or one.name, one.name
        return ProgramState(
            one.name,
            told,
            self._book.prompt_tokens(one.name),
            self._datastore.address_of(one.home) or "",
            one.context_tokens,
            one.shared_tokens,
            one.active,
            one.running > 0,
            max(now_s - one.idle_since_s, 0.0),
            max(now_s - one.admitted_s, 0.0),
            one.version,
        )

    def hear(self, origin: str, state: ProgramsState | None, now_s: float) -> None:
        """Take what another picker tells, None of one that is gone: its programs stay where they are."""
        self.draining.pop(origin, None)
        self._guard.elsewhere.pop(origin, None)
        if state is None or state.others is not None:
            for slot, engine in self._sets.engines.items():
                engine.elsewhere.pop(origin, None)
                if state is not None and state.others is not None:
                    engine.elsewhere[origin] = state.others.get(self._datastore.address_of(slot) or "", 0.0)
        if state is None:
            return
        self._guard.elsewhere[origin] = state.work_s
        if (slot_drained := self._datastore.slot_of(state.draining)) is not None:
            self.draining[origin] = slot_drained
        for told in state.programs:
            self._take(told, now_s)

    def _take(self, told: ProgramState, now_s: float) -> None:
        if (slot := self._datastore.slot_of(told.endpoint)) is None:
            return
        if (program := self._book.heard(told.name, told.told, told.prompt_tokens)) is None:
            return
        program.told = told.name
        program.busy_until_s = now_s + BELIEVED_S if told.busy else now_s
        if told.version > program.version or (told.version == program.version and program.theirs):
            program.version, program.theirs, program.known = told.version, True, program.known or told.active
            program.idle_since_s, program.admitted_s = now_s - told.idle_s, now_s - told.ran_s
            self._sets.resize(program, told.context_tokens, told.shared_tokens)
            self._sets.set(program, slot, active=told.active)
