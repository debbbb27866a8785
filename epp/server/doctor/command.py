"""`epp doctor`: asks picker, endpoints and Envoy, reads records, prints what is wrong and what to do.

Exit status: 0 nothing found, 1 findings, 2 the configuration cannot be read.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from epp.config.address import is_ip, join_address, split_address
from epp.config.load import salvage_config, stated
from epp.config.pool import EndpointSpec, parse_pool
from epp.decide.record_check import whole_records
from epp.decide.record_files import record_files
from epp.errors import EppError, gather, raise_all
from epp.server.doctor.engines import SKEW_S, check_engines
from epp.server.doctor.envoy import LOOPBACK, check_envoy
from epp.server.doctor.fetch import fetch
from epp.server.doctor.findings import Report
from epp.server.doctor.kernel import read_kernel
from epp.server.doctor.network import check_kernel, check_paths, check_windows, far_regions
from epp.server.doctor.picker import Page, check_picker
from epp.server.doctor.traffic import Traffic, check_traffic, measure
from epp.server.files import required_file
from epp.server.poll import with_credentials_of

if TYPE_CHECKING:
    import argparse

    from epp.config.kubernetes import Kubernetes
    from epp.config.schema import Config
    from epp.server.doctor.envoy_tree import Tree
    from epp.server.doctor.network import Far

#: How much of the records is read.
RECORD_BYTES = 64 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--config", required=True, type=Path, help="the picker's configuration file")
    parser.add_argument("--picker", metavar="URL", help="its HTTP listener (default: listen.http)")
    parser.add_argument(
        "--envoy-admin", metavar="URL", help="admin interface of Envoy, e.g. http://127.0.0.1:9901"
    )
    parser.add_argument("--records", type=Path, help="folder of records (default: records.folder)")
    parser.add_argument("--no-requests", action="store_true", help="send no small chat requests to endpoints")
    parser.add_argument("--json", action="store_true", help="print findings and notes as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check and print; 1 when there are findings.

    Raises:
        EppError: the configuration or the folder of records cannot be read, or a URL is none.
    """
    for flag, url in (("--picker", arguments.picker), ("--envoy-admin", arguments.envoy_admin)):
        if url and not url.startswith(("http://", "https://")):
            raise EppError(f"{flag}: {url} is not an http address, e.g. http://{url}")
    config, specs = load(arguments.config)
    folder = arguments.records
    if folder is None and config.records.folder:
        configured = arguments.config.resolve().parent / config.records.folder
        folder = configured if configured.is_dir() else None
    report = asyncio.run(
        examine(
            config,
            specs,
            picker=arguments.picker or _picker_url(config),
            envoy_admin=arguments.envoy_admin,
            records=folder,
            ask=not arguments.no_requests,
        )
    )
    print(_as_json(report) if arguments.json else _as_text(report))
    return 1 if report.findings else 0


async def examine(
    config: Config,
    specs: dict[str, EndpointSpec],
    *,
    picker: str,
    envoy_admin: str | None = None,
    records: Path | None = None,
    ask: bool = True,
) -> Report:
    """All checks of a deployment.

    Args:
        config: the picker's configuration.
        specs: its pool; where that is a cluster's, whatever the picker says that it has.
        picker: URL of its HTTP listener, empty when that is not known.
        envoy_admin: URL of Envoy's admin interface, None to leave Envoy out.
        records: folder of records, None to leave the traffic out.
        ask: whether endpoints may be sent small requests.

    Raises:
        EppError: the folder of records cannot be read.
    """
    report = Report()
    traffic = _traffic(report, records, config)
    async with aiohttp.ClientSession() as http:
        page = await _picker(report, http, picker)
        if config.pool.kubernetes is not None:
            specs = _in_cluster(report, page, config.pool.kubernetes)
        far = far_regions(page, config, specs) if page is not None else {}
        if page is not None:
            check_picker(report, page, config, specs)
            check_paths(report, page, far)
        known = traffic.cached_known & specs.keys() if traffic is not None else frozenset()
        await check_engines(report, http, config, specs, known=known, ask=ask)
        if envoy_admin is None:
            report.note("envoy", "no --envoy-admin given, so Envoy was not looked at")
        else:
            dump = await _envoy(report, http, envoy_admin.rstrip("/"))
            if dump is not None:
                relays = frozenset(
                    address for region in config.relays.regions for address in config.relays.addresses(region)
                )
                fallbacks = config.policy.fallbacks
                check_envoy(report, *dump, frozenset(specs), fallbacks=fallbacks, relays=relays)
                check_windows(report, dump[0], far)
            await _kernel(report, envoy_admin, far, config)
    return report


def load(path: Path) -> tuple[Config, dict[str, EndpointSpec]]:
    """The configuration and its pool, which is empty where a cluster has the endpoints.

    Raises:
        ConfigError: either cannot be read.
    """
    config, errors = salvage_config(required_file(path), str(path))
    base = path.resolve().parent
    config = msgspec.structs.replace(config, scrape=with_credentials_of(config.scrape, base))
    specs: dict[str, EndpointSpec] = {}
    if config.pool.kubernetes is None and stated(errors, "pool", "file", "kubernetes"):
        pool = base / config.pool.file
        with gather(errors):
            specs = parse_pool(required_file(pool), str(pool))
    raise_all(errors)
    return config, {address: with_credentials_of(spec, base) for address, spec in specs.items()}


def _picker_url(config: Config) -> str:
    """The HTTP listener as it is reached from here; empty when the system chose its port."""
    host, port = split_address(config.listen.http)
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if config.listen.http_tls is None else "https"
    return f"{scheme}://{join_address(local, port)}" if port else ""


def _traffic(report: Report, records: Path | None, config: Config) -> Traffic | None:
    if records is None:
        report.note("traffic", "no records, so whether prefix and distance can pay was not looked at")
        return None
    traffic = measure(record for file in _newest(records) for record in whole_records(file))
    check_traffic(report, traffic, config.policy.name)
    return traffic


def _newest(folder: Path) -> list[Path]:
    """The newest files of records, oldest first, as many as `RECORD_BYTES` allow and at least one."""
    chosen: list[Path] = []
    size = 0
    for file in reversed(record_files(folder)):
        size += file.stat().st_size
        if chosen and size > RECORD_BYTES:
            break
        chosen.append(file)
    return chosen[::-1]


def _in_cluster(report: Report, page: Page | None, cluster: Kubernetes) -> dict[str, EndpointSpec]:
    """The picker's own endpoints: the configuration names none where a cluster has them."""
    known = page.by("epp_endpoint_unavailable", "endpoint") if page is not None else {}
    report.note("picker", f"{len(known)} endpoints from the cluster, as the picker tells them")
    return {address: EndpointSpec(address=address, tls=cluster.tls) for address in known}


async def _picker(report: Report, http: aiohttp.ClientSession, url: str) -> Page | None:
    if not url:
        report.note("picker", "listen.http has port 0: tell where it listens with --picker, to look at it")
        return None
    ready = await fetch(http, f"{url.rstrip('/')}/readyz")
    if ready.status == 0:
        report.error(
            "picker",
            f"the picker does not answer at {url}: {ready.text}",
            "Envoy balances without it",
            "start it, or say where it listens with --picker",
        )
        return None
    if ready.status != 200:
        report.error(
            "picker",
            f"the picker is not ready: {ready.text.strip()}",
            "it is sent no requests where readiness counts",
            _when_ready(ready.text),
        )
    if ready.skew_s is not None and abs(ready.skew_s) > SKEW_S + ready.skew_error_s:
        report.warning(
            "clock",
            f"the clock of the picker is {ready.skew_s:+.1f} s from the one here",
            "times in records and reports of Envoy do not fit together",
            "run NTP or chrony on both",
        )
    answer = await fetch(http, f"{url.rstrip('/')}/metrics")
    try:
        page = Page(answer.text) if answer.status == 200 else None
    except ValueError:
        page = None
    if page is None or "epp_requests_in_flight" not in page:
        report.error(
            "picker",
            f"{url}/metrics is not the page of a picker",
            "nothing can be said of it",
            "say where the picker listens with --picker",
        )
        return None
    return page


def _when_ready(reason: str) -> str:
    """What to do about a reason of `App.not_ready`."""
    for words, fix in (
        ("no endpoints", "list some in pool.file, which it follows; its log says why, if there are some"),
        ("dead tasks", "its log says what they died of; start it again"),
        ("draining", "it is about to leave: look at the one that comes after it"),
        ("rebuilding", "ask again in some seconds"),
    ):
        if words in reason:
            return fix
    return "do what the reason says; its log tells more"


async def _kernel(report: Report, admin: str, far: dict[str, Far], config: Config) -> None:
    """Settings are those of the machine here: they say something of Envoy where it is here, too."""
    if not far:
        return
    if not (urlsplit(admin).hostname or "").startswith(LOOPBACK):
        report.note("network", "run the doctor where Envoy runs, to look at the kernel's settings")
        return
    hosts = [host for one in far.values() for host in one.hosts if is_ip(host)]
    check_kernel(report, far, await read_kernel(hosts), config)


async def _envoy(report: Report, http: aiohttp.ClientSession, admin: str) -> tuple[Tree, Tree] | None:
    """Answers of its admin interface to ``/config_dump`` and ``/clusters``; None when the first is none."""
    dump = await fetch(http, f"{admin}/config_dump?include_eds")
    clusters = await fetch(http, f"{admin}/clusters?format=json")
    config = dump.json()
    if dump.status != 200 or not _is_dump(config):
        said = f"status {dump.status}" if dump.status else dump.text
        report.error(
            "envoy",
            f"no configuration from {admin}/config_dump: {said}",
            "Envoy could not be looked at",
            "give the URL of its admin interface",
        )
        return None
    hosts = clusters.json()
    return config, hosts if isinstance(hosts, dict) else {}


def _is_dump(answer: Any) -> bool:
    """Whether it is what Envoy answers, a list of typed messages; other servers have other JSON."""
    configs = answer.get("configs") if isinstance(answer, dict) else None
    return isinstance(configs, list) and all(isinstance(one, dict) and "@type" in one for one in configs)


def _as_json(report: Report) -> str:
    findings = [
        {
            "severity": finding.severity.name.lower(),
            "area": finding.area,
            "what": finding.what,
            "why": finding.why,
            "fix": finding.fix,
        }
        for finding in report.ranked()
    ]
    notes = [{"area": area, "text": text} for area, text in report.notes]
    return json.dumps({"findings": findings, "notes": notes}, indent=2)


def _as_text(report: Report) -> str:
    lines = [f"  {area}: {text}" for area, text in report.notes]
    for finding in report.ranked():
        lines += [
            "",
            f"{finding.severity.name} ({finding.area}): {finding.what}",
            f"  why: {finding.why}",
            f"  fix: {finding.fix}",
        ]
    count = len(report.findings)
    lines += ["", f"{count} finding{'s' if count != 1 else ''}" if count else "nothing found"]
    return "\n".join(["looked at:", *lines])
