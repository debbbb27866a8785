"""`epp up`: Envoy and picker in one process tree, before engines given by URL."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import math
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import aiohttp
import msgspec
import uvloop
from rich.console import Console
from rich.text import Text

from epp.config.address import join_address, reachable, split_address
from epp.config.load import parse_config
from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.child import Child
from epp.envoy.command import listener_address, settings_from_config
from epp.envoy.process import EnvoyProcess, find_envoy, version_of
from epp.envoy.render import render, write
from epp.errors import ConfigError, EppError
from epp.feeds.poll import with_credentials_of
from epp.ops.doctor.context import Page
from epp.ops.picker_http import UP_FOLDER, UP_LOCK, UP_READY
from epp.ops.up.engines import Engines, look, spec_of
from epp.threads import Tasks, stop_signals

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Sequence

    from epp.config.schema import Config
    from epp.envoy.settings import EnvoySettings

LOOPBACK = "127.0.0.1"
#: First ports that are tried; `epp explain` and its like ask at 9090. What is started again listens where the
#: one before did.
_PORTS = {"listen": 8080, "http": 9090, "grpc": 9002, "first_token": 9003}
_ADMIN_PORT = 9901
_FIRST_LOOKS_S, _LINE_S = 3.0, 1.0
#: A process that ends twice within this ends everything.
_AGAIN_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("engines", nargs="+", metavar="URL", help="an engine with an OpenAI API, e.g. http://127.0.0.1:8000")
    for name, what in (
        ("listen", "where clients connect"),
        ("http", "where the picker serves its live page and metrics"),
        ("grpc", "where the picker serves Envoy"),
    ):
        then = f"{what} (default: {LOOPBACK}:{_PORTS[name]}, or the next port that is free)"
        add(f"--{name}", metavar="HOST:PORT", help=then)
    add("--key-env", metavar="NAME", help="environment variable with the key that the engines want")
    add(
        "--record",
        type=Path,
        metavar="DIR",
        help="record decisions and outcomes there, to compare policies on",
    )
    add("--ca-file", type=Path, metavar="FILE", help="who signed the engines' certificates, in PEM")
    add("--insecure", action="store_true", help="take whatever certificates the engines show")
    add(
        "--write",
        type=Path,
        metavar="DIR",
        help="start nothing: write the files for `epp serve` and Envoy there, to go on with",
    )


class Wanted(NamedTuple):
    """What the command line asks for.

    Attributes:
        specs: the engines, by address.
        address: host and port that clients connect to.
        key: of the engines, empty for none.
        sections: of the picker's configuration.
    """

    specs: dict[str, EndpointSpec]
    address: tuple[str, int]
    key: str
    sections: dict[str, dict[str, Any]]


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; with ``--write`` only write.

    Raises:
        EppError: an argument cannot be used, the port is taken, Envoy is missing, or picker or Envoy ended
            twice.
    """
    folder = arguments.write
    find_envoy()  # now, and not when the rest has started
    with ExitStack() as claims:
        wanted = _wanted(arguments, claims)
        if folder is None:
            console = Console(highlight=False, soft_wrap=True)
            uvloop.run(_until_signal(serve(wanted, own_folder(claims), console)))
        elif (folder / "epp.yaml").exists():
            raise ConfigError("<arguments>", "--write", f"{folder} has an epp.yaml", "name another folder")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            admin_port = claim_port(claims, LOOPBACK, _ADMIN_PORT, others=True)
            print(uvloop.run(put_down(wanted, folder.absolute(), admin_port)))
    return 0


def _wanted(arguments: argparse.Namespace, claims: ExitStack) -> Wanted:
    specs = dict[str, EndpointSpec]()
    for spec in map(spec_of, arguments.engines):
        if specs.setdefault(spec.address, spec) != spec:
            problem = f"{spec.address} is given twice; Envoy knows an engine by host and port alone"
            raise ConfigError("<arguments>", "URL", problem)
    name, listen, scrape = arguments.key_env, {}, dict[str, object]()
    for each, first in _PORTS.items():
        asked = getattr(arguments, each, None)
        host, port = listener_address(asked, f"--{each}") if asked else (LOOPBACK, first)
        listen[each] = join_address(host, claim_port(claims, host, port, others=not asked))
    address = split_address(listen.pop("listen"))
    if name:
        if not os.environ.get(name):
            raise ConfigError("<arguments>", "--key-env", f"the variable {name} is not set")
        scrape["bearer_token_file"] = "key"  # noqa: S105  # its name
    if arguments.ca_file:
        scrape["ca_file"] = str(arguments.ca_file.absolute())
    if arguments.insecure:
        scrape["insecure"] = True
    sections: dict[str, dict[str, Any]] = {
        "pool": {"file": "endpoints.yaml"},
        "listen": listen,
        "request": {"tell_endpoint": True},
        "queue": {"enabled": True},
        **({"scrape": scrape} if scrape else {}),
        **({"records": {"folder": str(arguments.record.absolute())}} if arguments.record else {}),
    }
    return Wanted(specs, address, os.environ.get(name or "", ""), sections)


def own_folder(claims: ExitStack) -> Path:
    """Make a temporary folder until ``claims`` closes; remove those of runs that were killed.

    A run holds the lock of its folder's file, which the kernel gives back however the run ends.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{UP_FOLDER}*"):
        # Somebody's that runs, or another user's.
        with suppress(OSError), (left / UP_LOCK).open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    folder = Path(claims.enter_context(tempfile.TemporaryDirectory(prefix=UP_FOLDER)))
    made = folder / "new"  # renamed once it is locked: before that nobody finds it
    fcntl.flock(claims.enter_context(made.open("wb")), fcntl.LOCK_EX)
    made.rename(folder / UP_LOCK)
    return folder


def claim_port(claims: ExitStack, host: str, port: int, *, others: bool) -> int:
    """Claim a port that nobody listens on: this one, 0 for any, or with ``others`` the next free one.

    Envoy and picker listen later, and Envoys of one user share a port without a word. As long as ``claims``
    is open, a socket's name in the kernel keeps other runs of this command from the port.

    Raises:
        EppError: it is taken, or cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        claim = socket.socket(socket.AF_UNIX)
        try:
            with socket.create_server((host, port), family=family) as free:
                claimed: int = free.getsockname()[1]
            claim.bind(f"\0epp-up-{claimed}")
        except OSError as error:
            claim.close()
            if (port and not others) or error.errno != errno.EADDRINUSE:
                raise EppError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from error
            port += bool(port)
        else:
            claims.enter_context(claim)
            return claimed


def write_config(folder: Path, wanted: Wanted) -> Config:
    """Write ``epp.yaml`` beside the endpoints file, and the engines' key, which only its owner may read."""
    if wanted.key:
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_text(wanted.key)
    text = msgspec.yaml.encode(wanted.sections)
    (folder / "epp.yaml").write_bytes(b"# Written by `epp up`. Keys: docs/configuration.md\n" + text)
    config = parse_config(text, "epp.yaml", os.environ)
    return msgspec.structs.replace(config, scrape=with_credentials_of(config.scrape, folder))


async def put_down(wanted: Wanted, folder: Path, admin_port: int) -> str:
    """Write all files into a folder; engines that are not up are in them, for any model. What to do next."""
    picker, config_file, envoy_file = write_config(folder, wanted), folder / "epp.yaml", folder / "envoy.yaml"
    async with aiohttp.ClientSession() as http:
        looks = await asyncio.gather(*(look(http, spec, picker.scrape) for spec in wanted.specs.values()))
    specs = [seen.spec or spec for seen, spec in zip(looks, wanted.specs.values(), strict=True)]
    (folder / "endpoints.yaml").write_bytes(dump_pool(specs))
    binary, settings = find_envoy(), _settings(picker, wanted, folder)
    oldest = min(settings.envoy_version, await version_of(binary))
    write(envoy_file, render(replace(settings, admin_port=admin_port, envoy_version=oldest)))
    found = [f"{address} {seen.words}" for address, seen in zip(wanted.specs, looks, strict=True)]
    paths = Path(sys.executable).with_name("epp"), config_file, binary, envoy_file
    epp, config, envoy, rendered = (shlex.quote(str(path)) for path in paths)
    return "\n".join(found) + (
        "\nGo on with these, each in a terminal of its own:\n"
        f"  {epp} serve --config {config}\n"
        f"  {envoy} -c {rendered} --disable-hot-restart\n"
        f"After a change of epp.yaml:\n"
        f"  {epp} envoy render --config {config} --out {rendered}"
        f" --listen {join_address(*wanted.address)} --admin-port {admin_port}"
    )


def _settings(config: Config, wanted: Wanted, folder: Path) -> EnvoySettings:
    """Describe the Envoy before a picker; the picker writes its endpoints."""
    return replace(
        settings_from_config(config, (spec.endpoint() for spec in wanted.specs.values())),
        listener_host=wanted.address[0],
        listener_port=wanted.address[1],
        eds_path=str(folder / config.pool.eds_file),
    )


async def _until_signal(work: Coroutine[None, None, NoReturn]) -> None:
    task = asyncio.ensure_future(work)
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def serve(wanted: Wanted, folder: Path, console: Console) -> NoReturn:
    """Run everything, and show what it does, until cancelled.

    Raises:
        EppError: picker or Envoy did not come up, or ended twice within ten seconds; with the end of its log.
    """

    def say(words: str) -> None:
        console.print(words, markup=False)

    ready = folder / UP_READY
    config = write_config(folder, wanted)
    engines = Engines(wanted.specs.values(), config.scrape, folder / "endpoints.yaml", say)
    async with AsyncExitStack() as started:
        status = started.enter_context(console.status(Text(f"Looking at {', '.join(wanted.specs)}")))
        http = await started.enter_async_context(aiohttp.ClientSession())
        tasks = Tasks()
        started.push_async_callback(tasks.stop_all)
        for address, spec in wanted.specs.items():
            tasks.start(address, engines.follow(http, spec))
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOKS_S):
                await engines.looked.wait()
        status.update("Waiting for the picker")
        words = ["serve", "--config", str(folder / "epp.yaml"), "--ready-file", str(ready)]
        picker = Child("picker", [*words, "--log-level", "warning"], folder)
        await started.enter_async_context(picker)
        await picker.until(ready.exists)
        status.update("Waiting for Envoy")
        settings = replace(_settings(config, wanted, folder), admin_port=0)
        envoy = await started.enter_async_context(EnvoyProcess(settings, folder=folder / "envoy"))
        host, port = split_address(config.listen.http)
        url, picker_url = envoy.listener_url, f"http://{join_address(reachable(host), port)}"
        say(f"Ready: {url} takes requests (base URL of OpenAI clients: {url}/v1)")
        if config.listen.serves_ui:
            say(f"Fleet and decisions: {picker_url}/ui, or in a terminal: epp top --url {picker_url}")
        say(f"Why one went where it went: epp explain --url {picker_url}    Ctrl-C ends everything")
        line, kept = Line(), (Kept(picker, say), Kept(envoy, say))
        while True:
            for process in kept:
                await process.check(time.monotonic())
            if console.is_terminal:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{picker_url}/metrics") as answer:
                        status.update(line.of(Page(await answer.text()), time.monotonic(), engines.missing))
            await asyncio.sleep(_LINE_S)


class Kept:
    """A process that is started again when it ends.

    Args:
        process: that runs.
        say: called with why it is started again.
    """

    def __init__(self, process: Child | EnvoyProcess, say: Callable[[str], None]) -> None:
        self._process, self._say = process, say
        self._ended_s = -math.inf

    async def check(self, now_s: float) -> None:
        """Start it again if it has ended.

        Raises:
            EppError: it ended for the second time within ten seconds, or does not start.
        """
        try:
            self._process.check()
        except EppError as error:
            if now_s - self._ended_s < _AGAIN_S:
                raise
            self._ended_s = now_s
            self._say(f"{error}\nIt is started again; if it ends within {_AGAIN_S:g} s, everything ends.")
            await self._process.__aenter__()


class Line:
    """The live line: requests that ended, and since the line before."""

    def __init__(self) -> None:
        self._ended, self._at_s = 0.0, 0.0

    def of(self, page: Page, now_s: float, missing: Sequence[str]) -> Text:
        """Write the line for a metrics page of the picker and the engines that are not up."""
        by_endpoint = page.by("epp_outcomes_total", "endpoint")
        ended = sum(by_endpoint.values())
        rate_rps = (ended - self._ended) / (now_s - self._at_s) if self._at_s else 0.0
        self._ended, self._at_s = ended, now_s
        facts = [f"{ended:,.0f} requests", f"{page.total('epp_requests_in_flight'):,.0f} in flight"]
        if refused := page.total("epp_refusals_total"):
            facts.append(f"{refused:,.0f} refused")
        by = (f"{address}: {count:,.0f}" for address, count in by_endpoint.items())
        waits = [f"waiting for {', '.join(missing)}"] if missing else []
        return Text("  ".join([*facts, f"{rate_rps:,.1f}/s", *by, *waits]))
