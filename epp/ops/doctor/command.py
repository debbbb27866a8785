"""`epp doctor`: asks picker, endpoints and Envoy, reads records, prints what is wrong and what to do.

Exit status: 0 all that was checked is fine, 1 findings, 2 the configuration cannot be read.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.config.address import join_address, reachable, split_address
from epp.config.load import salvage_files
from epp.errors import raise_all
from epp.feeds.files import required_file
from epp.feeds.poll import with_credentials_of
from epp.ops.doctor.checks import CHECKS, examine
from epp.ops.doctor.context import Context, Severity
from epp.ops.doctor.fetch import fetch_context

if TYPE_CHECKING:
    import argparse

    from epp.config.pool import EndpointSpec
    from epp.config.schema import Config
    from epp.ops.doctor.checks import Check
    from epp.ops.doctor.context import Finding

    _Found = list[tuple[Check, Finding]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
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
        EppError: the configuration or the folder of records cannot be read.
    """
    config, specs = load(arguments.config)
    folder = arguments.records
    if folder is None and config.records.folder:
        configured = arguments.config.resolve().parent / config.records.folder
        folder = configured if configured.is_dir() else None
    context = Context(
        config=config,
        specs=specs,
        picker_url=(arguments.picker or _picker_url(config)).rstrip("/"),
        admin=(arguments.envoy_admin or "").rstrip("/"),
        requests_sent=not arguments.no_requests,
    )
    found, left_out = examine(asyncio.run(fetch_context(context, folder)))
    notes = [(check.area, finding.what) for check, finding in found if finding.severity is Severity.NOTE]
    findings = [one for one in found if one[1].severity is not Severity.NOTE]
    findings.sort(key=lambda one: -one[1].severity)
    print(_as_json(findings, notes) if arguments.json else _as_text(findings, notes, left_out))
    return 1 if findings else 0


def load(path: Path) -> tuple[Config, dict[str, EndpointSpec]]:
    """Read the configuration and its pool, which is empty where a cluster has the endpoints.

    Raises:
        ConfigError: either cannot be read.
    """
    config, specs, errors = salvage_files(path, required_file, os.environ)
    raise_all(errors)
    base = path.resolve().parent
    config = msgspec.structs.replace(config, scrape=with_credentials_of(config.scrape, base))
    return config, {address: with_credentials_of(spec, base) for address, spec in specs.items()}


def _picker_url(config: Config) -> str:
    """Give the HTTP listener as it is reached from here; empty when the system chose its port."""
    host, port = split_address(config.listen.http)
    scheme = "http" if config.listen.http_tls is None else "https"
    return f"{scheme}://{join_address(reachable(host), port)}" if port else ""


def _as_json(findings: _Found, notes: list[tuple[str, str]]) -> str:
    listed = [
        asdict(each)
        | {"severity": each.severity.name.lower(), "area": check.area, "check": check.run.__name__}
        for check, each in findings
    ]
    told = [{"area": area, "text": text} for area, text in notes]
    return json.dumps({"findings": listed, "notes": told}, indent=2)


def _as_text(findings: _Found, notes: list[tuple[str, str]], left_out: list[Check]) -> str:
    lines = ["seen:", *(f"  {area}: {text}" for area, text in notes)]
    for check, finding in findings:
        lines += [
            "",
            f"{finding.severity.name} ({check.area}): {finding.what}",
            f"  why: {finding.why}",
            f"  fix: {finding.fix}",
        ]
    every, without = Counter(check.area for check in CHECKS), Counter(check.area for check in left_out)
    made = ", ".join(f"{area} {count - without[area]} of {count}" for area, count in every.items())
    count = len(findings)
    verdict = f"{count} finding{'s' if count != 1 else ''}" if count else "all of it is fine"
    lines += ["", f"checks made: {made}", verdict]
    return "\n".join(lines)
