"""Several worker processes of `epp serve` on one host.

Owns the processes and their common folder. The parent serves nothing: it opens the sockets that all listen
on, forks the workers, and forks anew those that die or stand still.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.errors import ConfigError
from epp.feeds.lead import is_led
from epp.rpc.accepting import close_early, located, open_early
from epp.rpc.connection_balancer import BEATS, WorkerBoard
from epp.threads import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.config.listen import Listen
    from epp.config.schema import Config

log = logging.getLogger("epp")

#: Time between two looks of the parent at its workers.
LOOK_S = 0.5
#: A worker that ended sooner than this after its start is started again only then.
_SHORTEST_LIFE_S = 2.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker knows of its place among all.

    Attributes:
        index: from 0.
        count: of all.
        folder: of the sockets between them.
        board: their memory.
        parent: process that watches over them.
    """

    index: int
    count: int
    folder: Path
    board: WorkerBoard
    parent: int


@dataclass(slots=True)
class _Process:
    """A worker's process, as its parent sees it."""

    pid: int
    started_s: float
    beats: float = 0.0
    still: int = 0  # looks since its last beat


class Workers:
    """The parent.

    Args:
        config: of every worker.
        count: how many.
        source: name of the configuration file, for errors.
        on_ready: called once with the addresses of the listeners, when all workers serve.

    Attributes:
        config: with the ports that the listeners really have.

    Raises:
        ConfigError: a listener's address cannot be used, or a setting does not go with workers.
    """

    def __init__(
        self, config: Config, count: int, source: str, on_ready: Callable[[dict[str, str]], None]
    ) -> None:
        _refuse_unfit(config, source)
        self._addresses = _open(config.listen, source)
        self.config = replace(config, listen=replace(config.listen, **self._addresses))
        self._on_ready: Callable[[dict[str, str]], None] | None = on_ready
        self._board, self._folder = WorkerBoard(count), Path(tempfile.mkdtemp(prefix="epp-workers-"))
        self._processes: dict[int, _Process] = {}
        self._not_before_s: dict[int, float] = {}
        self._most_still = math.ceil(config.listen.stall_limit_s / LOOK_S) + 2  # it ends by itself, mostly
        self._looked_s = 0.0
        self._failed: ConfigError | None = None
        self._status: int | None = None

    def run(self) -> Worker | int:
        """Keep the workers running until a signal ends them.

        Returns:
            In a worker, its place; in the parent, when all have ended, the exit status.

        Raises:
            ConfigError: ``on_ready`` raised it.
        """
        stops = stop_signals()
        signals = {*stops, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        while self._processes or self._status is None:
            if (worker := self._fork_missing()) is not None:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
                return worker
            found = signal.sigtimedwait(signals, LOOK_S)
            if found is not None and found.si_signo in stops:
                self._end(0, found.si_signo)
            self._reap()
            self._look()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._failed is not None:
            raise self._failed
        return self._status

    def _fork_missing(self) -> Worker | None:
        """Fork the workers that are not there; in one of them, its place."""
        if self._status is not None:
            return None
        # At first one alone, so that what is wrong with the configuration is said once.
        first = self._on_ready is not None and not self._board.having(BEATS)
        count, now_s = 1 if first else self._board.count, time.monotonic()
        for index in range(count):
            if index in self._processes or now_s < self._not_before_s.get(index, 0.0):
                continue
            parent = os.getpid()
            try:
                pid = os.fork()
            except OSError as error:
                log.error("worker %d cannot be started: %s", index, error)  # noqa: TRY400
                self._not_before_s[index] = now_s + _SHORTEST_LIFE_S
                continue
            if pid == 0:
                return Worker(index, self._board.count, self._folder, self._board, parent)
            log.info("worker %d is process %d", index, pid)
            self._processes[index] = _Process(pid, now_s)
        return None

    def _end(self, status: int, number: int = signal.SIGTERM) -> None:
        """End all workers by a signal, in order, or at once where that was asked before."""
        if self._status is None:
            self._status = status
            close_early()  # theirs are closed when they have drained
        for process in self._processes.values():
            os.kill(process.pid, number)

    def _reap(self) -> None:
        for index, process in list(self._processes.items()):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            was_ready = self._board[index][BEATS] > 0.0
            del self._processes[index]
            self._board.clear(index)
            if self._status is not None:
                continue
            ended = os.waitstatus_to_exitcode(status)
            if self._on_ready is not None and not was_ready:
                self._end(ended)
            else:
                log.error("worker %d has ended with status %d and is replaced", index, ended)
                self._not_before_s[index] = process.started_s + _SHORTEST_LIFE_S

    def _look(self) -> None:
        """Kill workers that stand still, and tell when all are ready for the first time."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S / 2:  # signals come in between
            return
        self._looked_s = now_s
        for index, process in self._processes.items():
            beats = self._board[index][BEATS]
            process.still = process.still + 1 if beats and beats == process.beats else 0
            process.beats = beats
            if process.still > self._most_still:
                log.error("worker %d stands still and is killed", index)
                os.kill(process.pid, signal.SIGKILL)
        if self._on_ready is not None and len(self._board.having(BEATS)) == self._board.count:
            try:
                self._on_ready(self._addresses)
            except ConfigError as error:
                self._failed = error
                self._end(0)
            self._on_ready = None


def _refuse_unfit(config: Config, source: str) -> None:
    if config.listen.transport == "grpcio":
        problem, fix = "does not go with --workers", "transport: builtin"
        raise ConfigError(source, "listen.transport", problem, fix)
    if is_led(config):
        problem, fix = "does not go with --workers, which share one folder of records", "lead: false"
        raise ConfigError(source, "nats.lead", problem, fix)


def _open(listen: Listen, source: str) -> dict[str, str]:
    """Open the listeners for all workers; their real addresses by key."""
    addresses = {}
    for key in ("grpc", "http", "first_token", "health"):
        address = addresses[key] = getattr(listen, key)
        if address:
            with located(source, f"listen.{key}", address):
                addresses[key] = open_early(address)
    return addresses
