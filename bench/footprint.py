"""What a picker's container needs: memory and CPU of `epp serve`, at rest and under the demo's load.

    python -m bench.footprint

At rest: called as the chart calls it, with a cluster of 100 pods that nobody answers behind. Under load: the
demo at several rates, with Envoy beside it. CPU is in cores, in the busiest five seconds; memory is the
resident set at its peak.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from epp.demo.child import Child
from epp.errors import EppError
from tests.kit import kubeobjects as objects
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubeserver import KubeServer

#: Time between two looks at a process.
_LOOK_S = 0.2
#: CPU is told of the busiest window of this length; the first seconds of a process are its start.
_WINDOW_S, _START_S = 5.0, 4.0
_LOG_TAIL = 2000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """What was seen of one process: its peak memory in MiB, (second, CPU seconds so far) at every look."""

    peak_mib: float = 0.0
    looks: list[tuple[float, float]] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Read the process's figures now; a process that has gone changes nothing."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        resident = next((line for line in status.splitlines() if line.startswith("VmRSS")), "VmRSS: 0 kB")
        self.peak_mib = max(self.peak_mib, int(resident.split()[1]) / 1024)
        self.looks.append((time.monotonic(), (int(stat[11]) + int(stat[12])) / _TICKS_PER_S))

    @property
    def cores(self) -> float:
        """CPU in the busiest window, the start left out."""
        busiest = 0.0
        settled = [look for look in self.looks if look[0] >= self.looks[0][0] + _START_S]
        for position, (begin_s, used_s) in enumerate(settled):
            later = next((look for look in settled[position:] if look[0] >= begin_s + _WINDOW_S), None)
            if later is not None:
                busiest = max(busiest, (later[1] - used_s) / (later[0] - begin_s))
        return busiest


async def at_rest(folder: Path, pods: int, seconds: float) -> tuple[Seen, float]:
    """The picker beside a cluster: what was seen after its start, and the CPU seconds of the start itself."""
    server = KubeServer()
    await server.start()
    client = objects.KubeClient(server.url, "")
    try:
        await client.create(objects.POOL_CRD)
        await client.create(objects.pool("llama"))
        for number in range(pods):
            await client.run_pod(objects.pod(f"engine-{number}"), f"127.1.{number // 250}.{number % 250 + 1}")
        os.environ["KUBECONFIG"] = str(kubeconfig(folder / "kubeconfig", server.url))
        ready = folder / "ready.json"
        words = [
            "serve", "--pool-name", "llama", "--pool-namespace", objects.NAMESPACE, "--zap-encoder", "json",
            "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--ready-file", str(ready),
        ]  # fmt: skip
        async with Child("picker", words, folder) as child:
            while not ready.exists():
                child.check()
                await asyncio.sleep(0.05)
            await asyncio.sleep(3.0)
            seen = Seen()
            for _ in range(round(seconds / _LOOK_S)):
                seen.look(child.pid)
                await asyncio.sleep(_LOOK_S)
            return seen, seen.looks[0][1]
    finally:
        await client.close()
        await server.stop()


async def under_load(folder: Path, rate: float, seconds: float) -> dict[str, Seen]:
    """The demo's picker and Envoy while requests come.

    One policy alone: each has a picker and an Envoy of its own, whose start would be taken for load.

    Raises:
        EppError: the demo failed; with the end of what it said.
    """
    words = [
        "-m", "epp", "demo", "--rate", str(rate), "--seconds", str(seconds), "--against", "",
        "--out", str(folder / "out"),
    ]  # fmt: skip
    with (folder / "demo.log").open("wb") as log:
        demo = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=log, stderr=log)
    seen = {"picker": Seen(), "envoy": Seen()}
    while demo.returncode is None:
        for pid in _children(demo.pid):
            command = _command(pid)
            if b"serve" in command and b"sim" not in command:
                seen["picker"].look(pid)
            elif b"envoy" in command[0]:
                seen["envoy"].look(pid)
        await asyncio.sleep(_LOOK_S)
    if demo.returncode:
        raise EppError(f"the demo failed: {(folder / 'demo.log').read_text()[-_LOG_TAIL:]}")
    return seen


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return [b""]


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split() if folder.name.isdigit() else []
        except OSError:  # it has ended
            continue
        if fields and int(fields[1]) == parent:
            found.append(int(folder.name))
    return found


async def measure(rates: list[float], seconds: float) -> None:
    """Print a row for each situation."""
    print("| | memory, peak | CPU |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        seen, start_s = await at_rest(Path(name), 100, 15.0)
        cpu = f"{seen.cores:.2f} cores, {start_s:.1f} s to start"
        print(f"| at rest, 100 pods | {seen.peak_mib:.0f} MiB | {cpu} |")
    for rate in rates:
        with tempfile.TemporaryDirectory() as name:
            for process, found in (await under_load(Path(name), rate, seconds)).items():
                row = (
                    f"| {process}, {rate:g} requests/s | {found.peak_mib:.0f} MiB | {found.cores:.2f} cores |"
                )
                print(row, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--rates", default="12,50", help="requests a second, comma list (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of each load (default: %(default)s)"
    )
    arguments = parser.parse_args()
    asyncio.run(measure([float(rate) for rate in arguments.rates.split(",")], arguments.seconds))


if __name__ == "__main__":
    main()
