"""A hub and its regions: network namespaces joined by links of the length asked for.

Owns the namespaces and the process that is the distance (`epp_lab.wan.delay`). Their names carry this
process's number, so that a later run finds and removes what a killed one left. Needs Linux, root and
``/dev/net/tun``; `why_not` says which is missing. The delay is made here and not by the kernel's netem,
because many kernels come without that.

The hub sees region number i (from 0) as 198.18.i.2 and is seen from there as 198.18.i.1, addresses set apart
for tests of networks (RFC 2544). Regions see each other through the hub where asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epp.errors import EppError
from epp_lab.wan.delay import Shape, new_tun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HUB = "hub"
_PREFIX = "epp-wan-"
_NAMESPACES = Path("/run/netns")
_STOP_S = 10.0
_ALL_REGIONS, _FAR_DEVICE = "198.18.0.0/16", "wan"
#: A process may have several networks.
_numbers = itertools.count()
# <sched.h>
_CLONE_NEWNET = 0x40000000


class WanError(EppError):
    """No network can be made here, or it broke."""


def why_not() -> str:
    """Return what keeps this machine from having such a network; empty when nothing does."""
    name = f"{_PREFIX}{os.getpid()}-try"
    try:
        os.close(new_tun()[0])  # the file may be there, and no driver behind it or no right to it
        _ip("netns", "add", name)
    except (OSError, WanError) as error:
        return f"network namespaces and TUN devices want Linux, root and iproute2: {error}"
    _delete(name)
    return ""


def remove_stale() -> None:
    """Remove namespaces whose makers are gone."""
    for path in _NAMESPACES.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _delete(path.name)


class Network:
    """A hub and regions, as a context manager. What still runs in them when it ends keeps running.

    Args:
        regions: both directions of each region's link, by its name, short and lower case.
        routed: regions reach each other, their links one after the other.
    """

    def __init__(self, regions: Mapping[str, Shape], *, routed: bool = False) -> None:
        self._regions, self._routed = dict(regions), routed
        self._number = next(_numbers)
        self._exit = ExitStack()
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        """Make it; whatever fails is taken down again.

        Raises:
            WanError: saying what failed.
        """
        if reason := why_not():
            raise WanError(reason)
        remove_stale()
        with ExitStack() as made:
            for place in (HUB, *self._regions):
                name = self.namespace(place)
                _ip("netns", "add", name)
                made.callback(_delete, name)
                _ip("-n", name, "link", "set", "lo", "up")
            # Its own session: a terminal's Ctrl-C is for us, who then close its input.
            self._process = subprocess.Popen(
                (sys.executable, "-m", "epp_lab.wan.delay"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            made.callback(_end, self._process)
            self._send([self._link(name) for name in self._regions])
            if self._process.stdout is None or self._process.stdout.readline() != b"up\n":
                raise WanError("the links did not come up")
            if self._routed:
                self.set_kernel(HUB, "ipv4.ip_forward", "1")
                for name in self._regions:
                    _ip("-n", self.namespace(name), "route", "add", _ALL_REGIONS, "dev", _FAR_DEVICE)
            self._exit = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down: the process, its devices, the namespaces."""
        self._exit.close()

    def namespace(self, place: str) -> str:
        """Return the namespace of a region or of `HUB`."""
        return f"{_PREFIX}{os.getpid()}-{self._number}-{place}"

    def address(self, region: str) -> str:
        """Return where the hub finds a region."""
        return f"198.18.{self._index(region)}.2"

    def command(self, place: str, *arguments: str) -> tuple[str, ...]:
        """Return the command that becomes a program there, under the same process number."""
        return ("ip", "netns", "exec", self.namespace(place), *arguments)

    def change(self, region: str, **changes: float | bool) -> None:
        """Change a link's shape from now on: fields of `Shape`.

        Raises:
            WanError: the process is gone.
        """
        shape = replace(self._regions[region], **changes)  # type: ignore[arg-type]  # names are those of fields
        self._regions[region] = shape
        self._send({"name": region, "shape": asdict(shape)})

    def set_kernel(self, place: str, parameter: str, value: str) -> None:
        """Set a kernel parameter of one namespace, by its name under ``net.``.

        Raises:
            WanError: the kernel does not take it.
        """
        script = 'printf %s "$1" > "/proc/sys/net/$0"'
        _run(*self.command(place, "sh", "-c", script, parameter.replace(".", "/"), value))

    def initial_window(self, place: str, region: str, segments: int) -> None:
        """Let new connections over a region's link begin with so many segments, by its route.

        Raises:
            WanError: the kernel does not take it.
        """
        near, far = self._link(region)["ends"]
        end = near if place == HUB else far
        to = _ALL_REGIONS if self._routed and place != HUB else end["peer"]
        windows = ("initcwnd", str(segments), "initrwnd", str(segments))
        _ip("-n", end["namespace"], "route", "replace", to, "dev", end["device"], *windows)

    def sent_bytes(self, region: str) -> int:
        """Count the bytes that a region has sent over its link.

        Raises:
            WanError: there is no link.
        """
        shown = _run("ip", "-n", self.namespace(region), "-s", "-j", "link", "show", "dev", _FAR_DEVICE)
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])

    @contextlib.contextmanager
    def joined(self, place: str) -> Iterator[None]:
        """Have this thread, and what it starts, inside a namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(_NAMESPACES / self.namespace(place), os.O_RDONLY)
        try:
            _enter(inside)
            yield
        finally:
            _enter(before)
            os.close(inside)
            os.close(before)

    def _index(self, region: str) -> int:
        return list(self._regions).index(region)

    def _link(self, region: str) -> dict[str, Any]:
        index, shape = self._index(region), asdict(self._regions[region])
        here, there = f"198.18.{index}.1", self.address(region)
        near = {"namespace": self.namespace(HUB), "device": f"wan{index}", "address": here, "peer": there}
        far = {"namespace": self.namespace(region), "device": _FAR_DEVICE, "address": there, "peer": here}
        return {"name": region, "seed": 1 + index, "shape": shape, "ends": [near, far]}

    def _send(self, message: object) -> None:
        if self._process.stdin is None or self._process.poll() is not None:
            raise WanError("the links are down")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the links' process, which does so by itself when its input ends."""
    try:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # names of ours
    if done.returncode:
        raise WanError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _delete(name: str) -> None:
    with contextlib.suppress(WanError):
        _ip("netns", "del", name)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise WanError(f"setns: {os.strerror(ctypes.get_errno())}")
