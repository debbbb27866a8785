"""One attack on a picker, beside peers that behave: processes, samples, figures."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from epp.envoy.launch import tied_to_parent
from epp_lab.bench.processes import cpu_s, held
from epp_lab.compare.stats import percentile
from tests.attacks.floods import FLOODS
from tests.attacks.probe import EVERY_S, LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
MIB = 1 << 20
#: What bodies, messages, headers and metadata may take together in these pickers, and what connections,
#: streams and sockets of these attacks take beside it, with what the allocator keeps.
BUDGET_BYTES, CONSTANT_BYTES = 64 * MIB, 192 * MIB
#: At this an attack is broken off, for the sake of the machine.
BREAK_OFF_BYTES = 2048 * MIB
MAX_CONNECTIONS = 256
#: Sections of the picker's configuration.
CONFIG: dict[str, Any] = {
    "request": {"max_body_bytes": 16 * MIB, "max_held_body_bytes": BUDGET_BYTES},
    "listen": {
        **dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0"),
        "max_connections": MAX_CONNECTIONS,
    },
}
SLOW_MS = 50.0
_PROCESSES = 2
_LOOK_S = 0.05
#: Longest wait for a picker to be itself again, and before an attack to serve all probes.
_RECOVERY_S, _SERVED_S = 15.0, 240.0


class Sample(NamedTuple):
    """A call that is over."""

    number: int
    begun_s: float
    ms: float
    problem: str

    @property
    def end_s(self) -> float:
        return self.begun_s + self.ms / 1e3


@dataclass
class Row:
    """What one attack did.

    Attributes:
        name: of the attack.
        ms: what calls of each probe took that began while it went on.
        failures: how long after its end each call failed that began since its beginning, and why.
        rss_bytes: of the picker: before, and at most.
        cpu: share of a core that the picker took.
        recovery_s: from the attack's end until every call was quick again.
        tally: of the attackers' connections.
        cut_short: why the attack was not carried out to its end.
    """

    name: str
    ms: dict[str, list[float]] = field(default_factory=dict)
    failures: list[tuple[float, str]] = field(default_factory=list)
    rss_bytes: tuple[int, int] = (0, 0)
    cpu: float = 0.0
    recovery_s: float = 0.0
    tally: dict[str, int] = field(default_factory=dict)
    cut_short: str = ""

    def percentile(self, probe: str, q: float) -> float:
        """Of calls in ms, 100 for the longest; NaN where nothing was called."""
        return percentile(self.ms.get(probe, ()), q)


def _started(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    command = tied_to_parent(sys.executable, "-m", *arguments)
    return subprocess.Popen(command, start_new_session=True, bufsize=0, **pipes)


class Probe:
    """A process of `tests.attacks.probe`, whose output is kept in a file."""

    def __init__(self, folder: Path, name: str, kind: str, address: str, source: str, *flags: str) -> None:
        self.name, self._file = name, folder / f"{name}.samples"
        self._samples: list[Sample] = []
        self._read_bytes = 0
        with self._file.open("wb") as samples:
            self.process = _started("tests.attacks.probe", kind, address, source, *flags, stdout=samples)

    def samples(self, since_s: float = 0.0) -> list[Sample]:
        """Of calls begun since then that are over."""
        with self._file.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole + newline)
        self._samples += [Sample(*json.loads(line)) for line in whole.splitlines()]
        return [sample for sample in self._samples if sample.begun_s >= since_s]

    def settled(self, until_s: float) -> bool:
        """Whether all calls begun until then are over, as far as one can know."""
        later = [sample.number for sample in self.samples(until_s)]
        return bool(later) and sum(sample.number < min(later) for sample in self._samples) == min(later)

    def served(self) -> bool:
        """Whether the last ten calls succeeded."""
        last = self.samples()[-10:]
        return len(last) == 10 and not any(sample.problem for sample in last)


class Rig:
    """Attackers and probes beside a picker that runs; a context manager that ends them.

    Args:
        pid: the picker.
        address: its gRPC listener, or NATS.
        probes: that run.
        tls: whether the listener speaks TLS.
        works: says after an attack what does not work any more, ``""`` for nothing.
        http: the picker's listener for HTTP, where an attack wants it.
    """

    def __init__(
        self,
        pid: int,
        address: str,
        probes: list[Probe],
        *,
        tls: bool = False,
        works: Callable[[], str] = str,
        http: str = "",
    ) -> None:
        self._works, self.http = works, http
        self._pid, self._probes = pid, probes
        self._command = ("tests.attacks.attacker", address, *(["tls"] if tls else []))
        self._attackers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_attackers()
        for probe in self._probes:
            probe.process.kill()
            probe.process.wait()

    def run(
        self,
        name: str,
        *,
        seconds: float,
        connections: int,
        slow_ms: float = SLOW_MS,
        quiet_s: float = 2.0,
        done: Callable[[], bool] = lambda: False,
    ) -> Row:
        """One attack, begun once all probes are served, and the time until the picker is itself again.

        Args:
            name: of the attack, ``""`` for none.
            seconds: how long.
            connections: at once.
            slow_ms: a call that takes longer is not what is usual.
            quiet_s: calls must be quick for so long before the picker counts as itself again.
            done: whether the attack has come to its end sooner.
        """
        row, deadline_s = Row(name or "none"), time.monotonic() + _SERVED_S
        while not all(probe.served() for probe in self._probes):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not served: {[probe.samples()[-1:] for probe in self._probes]}")
            time.sleep(_LOOK_S)
        waiting = self._begin(name, seconds, connections) if name else []
        begun_s = time.monotonic()
        try:
            before = most = held(self._pid).rss_bytes
            used_s = cpu_s(self._pid)
            while waiting or time.monotonic() < begun_s + seconds:
                for output in select.select(waiting, [], [], _LOOK_S)[0]:
                    waiting.remove(output)
                    for key, count in json.loads(output.readline()).items():
                        row.tally[key] = row.tally.get(key, 0) + count
                most = max(most, held(self._pid).rss_bytes)
                if done():
                    self._end_attackers()
                    break
                if most > BREAK_OFF_BYTES or time.monotonic() > begun_s + seconds + LIMIT_S:
                    row.cut_short = "memory" if most > BREAK_OFF_BYTES else "the attackers hang"
                    self._end_attackers()
                    break
            end_s = time.monotonic()
            row.cpu = (cpu_s(self._pid) - used_s) / (end_s - begun_s)
            row.recovery_s = self._recovery_s(begun_s, end_s, slow_ms, quiet_s)
            row.rss_bytes = before, max(most, held(self._pid).rss_bytes)
            row.cut_short = row.cut_short or self._works()
        except OSError:
            end_s, row.cut_short = time.monotonic(), "the picker is gone"
        for probe in self._probes:
            found = probe.samples(begun_s)
            row.ms[probe.name] = [sample.ms for sample in found if sample.begun_s <= end_s]
            failed = [sample for sample in found if sample.problem]
            row.failures += [(sample.end_s - end_s, f"{probe.name}: {sample.problem}") for sample in failed]
        return row

    def _begin(self, name: str, seconds: float, connections: int) -> list[Any]:
        """Begin an attack; the pipes that tell of its end."""
        while len(self._attackers) < _PROCESSES:
            pipe = subprocess.PIPE
            self._attackers.append(_started(*self._command, stdin=pipe, stdout=pipe))
        if name in FLOODS and FLOODS[name].all_places:
            connections = MAX_CONNECTIONS + MAX_CONNECTIONS // 10
        share = -(-connections // _PROCESSES)
        order = {"name": name, "seconds": seconds, "connections": share, "source": ATTACKER}
        for process in self._attackers:
            process.stdin.write(json.dumps(order).encode() + b"\n")  # type: ignore[union-attr]  # a pipe
        outputs = [process.stdout for process in self._attackers]
        for output in outputs:
            output.readline()  # type: ignore[union-attr]  # it has begun
        return outputs

    def _end_attackers(self) -> None:
        for process in self._attackers:
            process.kill()
            process.communicate()
        self._attackers.clear()

    def _recovery_s(self, begun_s: float, end_s: float, slow_ms: float, quiet_s: float) -> float:
        """Wait until calls have been quick for a while; from when on, after the end."""
        while (now_s := time.monotonic()) < end_s + _RECOVERY_S:
            calls = [sample for probe in self._probes for sample in probe.samples(begun_s)]
            slow_s = [sample.end_s for sample in calls if sample.ms > slow_ms or sample.problem]
            settled = all(probe.settled(now_s - 2 * EVERY_S) for probe in self._probes)
            if settled and now_s > max([end_s, *slow_s]) + quiet_s:
                return max(0.0, *(at_s - end_s for at_s in [end_s, *slow_s]))
            time.sleep(2 * _LOOK_S)
        return _RECOVERY_S
