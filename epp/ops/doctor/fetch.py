"""Fetches what checks look at: pages of picker, endpoints and Envoy, records, settings of this machine.

An endpoint is asked as the picker's probes ask it, through its region's relay where that is their way. What
the network does raises nothing; nothing is ever set.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from epp.apis.listed_models import parse_models
from epp.config.address import is_ip
from epp.config.pool import EndpointSpec
from epp.extproc.messages import DESTINATION_HEADER, SERVED_KEY
from epp.feeds.poll import check_served, target_of
from epp.feeds.resolve import Resolver
from epp.ops.doctor.context import Answer, Engine, Kernel, Page
from epp.ops.doctor.envoy_dump import Envoy, is_dump
from epp.ops.doctor.network import SYSCTLS, far_regions, is_envoys, parse_route
from epp.signals.metrics_text import is_exposition, parse_metrics
from epp.types import split_rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.feeds.poll import Target
    from epp.ops.doctor.context import Context

TIMEOUT_S = 10.0
#: How much of the records is read.
RECORD_BYTES = 64 * 1024 * 1024
#: Words of a prompt that fills at least one block of any engine's cache (SGLang 1, vLLM 16, some set 128).
PROMPT_WORDS = 400
_SYSCTL = Path("/proc/sys/net/ipv4")
_ROUTE_S = 5.0


async def fetch_context(context: Context, records: Path | None) -> Context:
    """Fetch everything, once.

    Args:
        context: the configuration, its pool, and what of them is to be asked.
        records: folder of records, None to leave the traffic out.

    Raises:
        EppError: the folder of records cannot be read.
    """
    if records is not None:
        from epp.ops.doctor.traffic import measure  # noqa: PLC0415  # with numpy, which `epp up` does without
        from epp.records.files import read_records  # noqa: PLC0415

        lines = (record for file in _newest(records) for record in read_records(file))
        context = replace(context, traffic=measure(lines))
    async with aiohttp.ClientSession() as http:
        if context.picker_url:
            context = await _with_picker(context, http)
        context = replace(context, engines=await _engines(context, http))
        if context.admin:
            context = await _with_envoy(context, http)
    if is_envoys(context.admin):
        hosts = [host for one in far_regions(context).values() for host in one.hosts if is_ip(host)]
        context = replace(context, kernel=await asyncio.to_thread(read_kernel, hosts))
    return context


def _newest(folder: Path) -> list[Path]:
    """List the newest files of records, oldest first: as many as `RECORD_BYTES` allow, and at least one."""
    from epp.records.files import record_files  # noqa: PLC0415

    chosen: list[Path] = []
    size = 0
    for file in reversed(record_files(folder)):
        size += file.stat().st_size
        if chosen and size > RECORD_BYTES:
            break
        chosen.append(file)
    return chosen[::-1]


async def _with_picker(context: Context, http: aiohttp.ClientSession) -> Context:
    """Ask the picker; where a cluster has the endpoints, its metrics name them."""
    ready = await _request(http, f"{context.picker_url}/readyz")
    answer = await _request(http, f"{context.picker_url}/metrics")
    page = None
    with suppress(ValueError):
        page = Page(answer.text) if answer.status == 200 else None
    if page is None or "epp_requests_in_flight" not in page:
        return replace(context, ready=ready)
    specs = context.specs
    if (cluster := context.config.pool.kubernetes) is not None:
        known = Counter(split_rank(name)[0] for name in page.by("epp_endpoint_unavailable", "endpoint"))
        specs = {
            address: EndpointSpec(address=address, tls=cluster.tls, ranks=ranks)
            for address, ranks in known.items()
        }
    return replace(context, ready=ready, metrics=page, specs=specs)


async def _with_envoy(context: Context, http: aiohttp.ClientSession) -> Context:
    dump = await _request(http, f"{context.admin}/config_dump?include_eds")
    clusters = (await _request(http, f"{context.admin}/clusters?format=json")).json()
    config = dump.json()
    if dump.status != 200 or not is_dump(config):
        return replace(context, no_dump=dump.problem)
    return replace(context, dump=Envoy(config, clusters if isinstance(clusters, dict) else {}))


async def _engines(context: Context, http: aiohttp.ClientSession) -> tuple[Engine, ...]:
    """Ask every endpoint of the pool; a relay knows one with a host name by its address alone."""
    config = context.config
    targets = {
        address: target_of(address, spec, config.scrape, None if config.federation.region else config.relays)
        for address, spec in context.specs.items()
    }
    relayed = [address for address, target in targets.items() if target.relay]
    resolver = Resolver()
    resolver.set_pool(relayed)
    await asyncio.gather(*(resolver.resolve(address) for address in relayed))
    for address in relayed:
        targets[address] = replace(targets[address], address=resolver.known_as(address))
    asked = (_engine(context, http, address, target) for address, target in targets.items())
    return tuple(await asyncio.gather(*asked))


async def _engine(context: Context, http: aiohttp.ClientSession, address: str, target: Target) -> Engine:
    listed = await ask_endpoint(http, target, "/v1/models")
    metrics = await ask_metrics(http, target)
    engine = Engine(address, context.specs[address], metrics, tuple(sorted(parse_models(listed.body))))
    seen = context.traffic is not None and address in context.traffic.cached_known
    if not context.requests_sent or seen or engine.model is None:
        return engine
    words = " ".join(["doctor", secrets.token_hex(8), *["one two three four five"] * (PROMPT_WORDS // 5)])
    body = {"model": engine.model, "messages": [{"role": "user", "content": words}], "max_tokens": 1}
    chats: tuple[Answer, ...] = ()
    while len(chats) < 2 and all(answer.status == 200 for answer in chats):
        chats += (await ask_endpoint(http, target, "/v1/chat/completions", body=body),)
    return replace(engine, chats=chats)


async def ask_metrics(http: aiohttp.ClientSession, target: Target) -> Answer:
    """GET an endpoint's metrics from the first path that has them; where none has, what the first answers."""
    answers = list[Answer]()
    for path in target.metrics_paths:
        answers.append(answer := await ask_endpoint(http, target, path))
        if answer.status == 200 and is_exposition(answer.body, parse_metrics(answer.body)):
            return answer
        if not answer.status:
            break
    return answers[0]


async def ask_endpoint(
    http: aiohttp.ClientSession, target: Target, path: str, *, body: object = None
) -> Answer:
    """GET an endpoint's page, or POST a JSON body, with its credentials and on the probes' way.

    Args:
        http: the client.
        target: the endpoint, by the address that its relay knows.
        path: the page.
        body: what is posted, None for GET.
    """
    headers: dict[str, str] = {}
    try:
        if target.bearer_token_file:
            token = Path(target.bearer_token_file).read_text()  # noqa: ASYNC240 - a command of its own
            headers["authorization"] = f"Bearer {token.strip()}"
        tls = target.context()
    except (OSError, ValueError) as problem:
        return _none(problem)
    wanted = target.address if target.relay else ""
    if wanted:
        headers[DESTINATION_HEADER] = wanted
    url = f"{'https' if target.tls else 'http'}://{target.relay or target.address}{target.base_path}{path}"
    server_name = target.server_name if target.tls else None
    options = {"json": body, "headers": headers, "ssl": tls or True, "server_hostname": server_name}
    return await _request(http, url, wanted=wanted, **options)


async def _request(
    http: aiohttp.ClientSession, url: str, *, wanted: str = "", json: object = None, **options: Any
) -> Answer:
    """Send one request; through a relay only the endpoint wanted may answer."""
    started_s = time.time()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    options |= {"json": json, "timeout": timeout, "allow_redirects": False}
    try:
        async with http.request("GET" if json is None else "POST", url, **options) as response:
            answered_s = time.time()
            if wanted:
                check_served(response.headers.get(SERVED_KEY, ""), wanted)
            content = await response.read()
            skew_s, error_s = _skew(response.headers.get("date"), started_s, answered_s)
            return Answer(response.status, content, skew_s, error_s)
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        return _none(problem)


def _none(problem: Exception) -> Answer:
    if type(problem) is aiohttp.ClientConnectorError and problem.errno:
        # Its own words name the address again; those of its subclasses, of TLS and of names, say more.
        return Answer(0, os.strerror(problem.errno).encode())
    name = type(problem).__name__
    return Answer(0, (f"{name}: {problem}" if str(problem) else name).encode())


def _skew(date: str | None, started_s: float, answered_s: float) -> tuple[float | None, float]:
    """Compare clocks; the header has whole seconds, so it was written up to a second after what it says."""
    with suppress(ValueError, TypeError):
        said_s = parsedate_to_datetime(date or "").timestamp() + 0.5
        return said_s - (started_s + answered_s) / 2, (answered_s - started_s) / 2 + 0.5
    return None, 0.0


def read_kernel(hosts: Iterable[str], folder: Path = _SYSCTL) -> Kernel:
    """Read what there is; without any settings this is no Linux, or it hides them.

    Args:
        hosts: IP addresses whose routes are wanted; those without ``ip``, or without a route, are left out.
        folder: where settings are.
    """
    settings = {}
    for name in SYSCTLS:
        with suppress(OSError):
            settings[name] = (folder / name).read_text().strip()
    routes = {host: parse_route(_route_to(host)) for host in hosts}
    return Kernel(settings, {host: route for host, route in routes.items() if route is not None})


def _route_to(host: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        command = ["ip", "route", "get", host]
        done = subprocess.run(  # noqa: S603  # an address of the pool
            command, capture_output=True, text=True, timeout=_ROUTE_S, check=False
        )
        return done.stdout
    return ""
