"""What the picker that leads has in its files, in the files of all pickers.

Owns the file that says who leads, for the sidecars beside the picker: only those of the leader work. The
leader's picker sends its weights, its tuner's memory and its model; the others write them where they have
their own, so that whoever leads next goes on with what is in force.

Rules
- A picker obeys its own files while it leads, and until it hears of a leader; then the leader's alone. What
  its own sidecar still writes after that is refused and written over.
- The sidecars hear that they do not lead before the leader's content is in their files.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from epp.cluster.leading import TERM_STEP
from epp.errors import ConfigError, UnreadableError
from epp.feeds.files import read_file, replace_file
from epp.records.weight_files import memory_path
from epp.threads import in_daemon_thread
from epp.wire import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.cluster.leading import Leading
    from epp.config.schema import Config

T = TypeVar("T")
log = logging.getLogger(__name__)

WEIGHTS, MEMORY, MODEL = "weights", "tuner", "model"
LOOK_S = 1.0
#: Without changes the leader sends its files so often: for pickers that joined, or missed them.
AGAIN_S = 5.0
#: Clocks that differ by less are alike.
_SKEW_STEP_S = 0.5


class LeadFile(msgspec.Struct, frozen=True):
    """What sidecars read.

    Attributes:
        leads: whether the picker beside them leads.
        term: that it knows.
        leader: its name, empty for nobody.
        skew_s: by how much clocks of pickers differ.
    """

    leads: bool
    term: Annotated[int, msgspec.Meta(ge=0, le=TERM_STEP)] = 0
    leader: str = ""
    skew_s: float = 0.0


_FILES = msgspec.json.Decoder(LeadFile)


class _TunerMemory(msgspec.Struct):
    """The part of a tuner's memory that means something beside another picker's records."""

    state: msgspec.Raw


def lead_path(records: Path) -> Path:
    """Name the file that says who leads, in the folder of records."""
    return records / "lead.json"


def read_lead(records: Path) -> LeadFile:
    """Read who leads; before a picker has written what can be, nobody does."""
    try:
        return read(_FILES, read_file(lead_path(records)) or b"")
    except (OSError, UnreadableError):
        return LeadFile(leads=False)


def is_led(config: Config) -> bool:
    """Tell whether one picker of several leads, and the sidecars of others wait."""
    follows = bool(config.weights_file or config.policy.model_file)
    return bool(config.nats.url and config.nats.lead and config.records.folder and follows)


def followed_files(config: Config, base: Path) -> dict[str, Path]:
    """List the files that follow the leader's."""
    files: dict[str, Path] = {}
    if config.weights_file:
        files[WEIGHTS] = base / config.weights_file
        files[MEMORY] = memory_path(files[WEIGHTS])
    if config.policy.model_file:
        files[MODEL] = base / config.policy.model_file
    return files


class LeadFeed:
    """Sends the files while this picker leads, and writes the leader's while it does not.

    Args:
        files: by name.
        records: folder that the sidecars read.
        leading: says who leads.
        publish: sends a file's name and content to all.
        clock: the time.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        records: Path,
        leading: Leading,
        publish: Callable[[str, bytes | None], None],
        clock: Clock,
    ) -> None:
        self._files, self._records, self._leading = files, records, leading
        self._publish, self._clock = publish, clock
        #: What the leader has, by file, while another leads; and what was sent last, while this one does.
        self._taken: dict[str, bytes | None] = {}
        self._sent: dict[str, bytes | None] = {}
        self._sent_s = 0.0
        self._written: LeadFile | None = None
        self._problem = ""

    def take(self, name: str, content: bytes | None) -> None:
        """Take what the leader has in a file; it is written soon."""
        if name in self._files:
            self._taken[name] = content

    def checked(self, name: str, parse: Callable[[bytes | None], T]) -> Callable[[bytes | None], T]:
        """Make a parser refuse what is not the leader's."""

        def parse_checked(text: bytes | None) -> T:
            leading = self._leading
            if leading.follows and (name not in self._taken or self._taken[name] != text):
                problem = f"not what {leading.leader} has, which leads in term {leading.term}"
                raise ConfigError(str(self._files[name]), "", problem)
            return parse(text)

        return parse_checked

    async def run(self) -> None:
        """Send or write for ever."""
        while True:
            try:
                await self._look()
            except OSError as error:
                if str(error) != self._problem:
                    log.warning("the leader's files cannot be followed: %s", error)
                self._problem = str(error)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        leading = self._leading
        skew_s = leading.skew_s // _SKEW_STEP_S * _SKEW_STEP_S
        leader = leading.leader if leading.leads or leading.follows else ""  # one without NATS leads nobody
        lead = LeadFile(leading.leads, leading.term, leader, skew_s)
        if (before := self._written) is None or (before.leader, before.leads) != (lead.leader, lead.leads):
            log.info("%s", "this picker leads" if lead.leads else f"{lead.leader or 'nobody'} leads")
        if lead.leads:
            self._taken.clear()
        found = await in_daemon_thread(self._exchange, lead, dict(self._taken))
        self._written, self._problem = lead, ""
        if lead.leads and leading.leads:
            self._send(found)

    def _exchange(self, lead: LeadFile, taken: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """Say who leads, write what the leader has; return what is in the files of a picker that leads."""
        if lead != self._written:
            self._records.mkdir(parents=True, exist_ok=True)
            replace_file(lead_path(self._records), msgspec.json.encode(lead))
        if lead.leads:
            found = {name: read_file(path) for name, path in self._files.items()}
            return found | {MEMORY: _portable(found[MEMORY])} if MEMORY in found else found
        for name, content in taken.items():
            path = self._files[name]
            if content is None:
                path.unlink(missing_ok=True)
            elif read_file(path) != content:
                replace_file(path, content)
        return {}

    def _send(self, found: Mapping[str, bytes | None]) -> None:
        now_s = self._clock.mono_s()
        again = now_s - self._sent_s >= AGAIN_S
        for name, content in found.items():
            if content is None and name != MODEL:
                continue  # a missing file says something where its writer removes it, which the learner does
            if again or name not in self._sent or self._sent[name] != content:
                self._publish(name, content)
                self._sent[name] = content
        if again:
            self._sent_s = now_s


def _portable(memory: bytes | None) -> bytes | None:
    """Leave out of a tuner's memory where it has read its own picker's records to."""
    try:
        return msgspec.json.encode(msgspec.json.decode(memory or b"", type=_TunerMemory))
    except msgspec.DecodeError:
        return None
