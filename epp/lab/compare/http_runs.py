"""`epp replay --over-http`: the same loads and statistics, sent to live gateways.

Owns the order of runs and the terminal while they run. Gateways are driven one after the other with the same
requests; latencies count from the intended send time (`epp.lab.compare.load`). What differs between gateways
may
also be the time at which each was driven, and nothing here can tell: repeat in another order to see.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import aiohttp

from epp.errors import EppError
from epp.lab.compare.cells import cells_of, is_sweep
from epp.lab.compare.comparison import cell_entry
from epp.lab.compare.console import progress
from epp.lab.compare.document import SCHEMA, Document
from epp.lab.compare.load import LoadOptions, run_load
from epp.lab.compare.measure import from_live
from epp.lab.compare.simulate import outcome_of
from epp.lab.compare.trace_stats import describe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from epp.lab.compare.document import CellEntry
    from epp.lab.compare.plan import Cell
    from epp.lab.compare.simulate import Outcome
    from epp.lab.compare.trace import TraceRequest

_DEFAULT_IN_FLIGHT = 1024
#: A gateway that has not answered by then is not there.
_CHECK_S = 10.0


def gateways_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Gateways by name; one without a name is called by its host and port.

    Raises:
        EppError: something that is no URL, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in arguments.over_http:
        name, separator, url = text.partition("=")
        if not separator or "://" in name:
            name, url = text.split("://", 1)[-1].rstrip("/"), text
        if not url.startswith(("http://", "https://")):
            raise EppError(f"--over-http {text}: not a URL such as http://127.0.0.1:8080")
        if name in found:
            raise EppError(f"--over-http names {name} twice")
        found[name] = url
    return found


def compare_gateways(arguments: argparse.Namespace, console: Console) -> tuple[Document, list[str]]:
    """Drive each gateway with each load, sum up, compare within the load.

    Returns:
        What the gateways did, and a sentence for each one that answered nothing to a load: it is left out
        there, and not driven with the loads after that.

    Raises:
        EppError: flags that make no sense live, or a gateway that is not there, or none that answered.
    """
    gateways = gateways_of(arguments)
    cells = cells_of(arguments)
    if arguments.sweep or arguments.tune or is_sweep(arguments.shape):
        raise EppError("--sweep, --tune and `--shape sweep` are for simulated fleets")
    headers = _headers(arguments.header)
    names = list(gateways)
    candidate = arguments.candidate or names[0]
    if candidate not in names:
        raise EppError(f"--candidate {candidate} is not among the gateways: {', '.join(names)}")
    for cell in cells:  # before anything is driven
        requests = cell.source.requests(arguments.first_seed)
        cell.check_length(requests)
        cell.warmup(requests)
    asyncio.run(_check_there(gateways, headers))
    driven, failed = _drive_all(cells, gateways, arguments, headers, console)
    left = [name for name in names if name not in failed]
    if not left:
        raise EppError("; ".join(failed.values()))
    candidate = candidate if candidate in left else left[0]
    margin = arguments.margin / 100.0
    entries = [_entry(cell, arguments.first_seed, outcomes, candidate, margin) for cell, outcomes in driven]
    document = Document(
        schema=SCHEMA,
        fleet=[],
        seeds=[arguments.first_seed],
        candidate=candidate,
        margin=margin,
        cells=entries,
    )
    return document, list(failed.values())


async def _check_there(gateways: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """Ask every gateway for its models; whatever it answers, it is there.

    Raises:
        EppError: one is not, which would be found out when those before it had been driven.
    """
    timeout = aiohttp.ClientTimeout(total=_CHECK_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
        for name, url in gateways.items():
            try:
                async with client.get(f"{url.rstrip('/')}/v1/models"):
                    pass
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
                raise EppError(f"{name} does not answer, and nothing was sent to any: {problem}") from error


def _drive_all(
    cells: Sequence[Cell],
    gateways: Mapping[str, str],
    arguments: argparse.Namespace,
    headers: dict[str, str],
    console: Console,
) -> tuple[list[tuple[Cell, dict[str, Outcome]]], dict[str, str]]:
    """What each gateway did under each load, and the words for each that answered nothing."""
    failed: dict[str, str] = {}
    driven = []
    for cell in cells:
        requests = cell.source.requests(arguments.first_seed)
        duration_s = requests[-1].at_ms * cell.pace / 1000.0
        console.print(
            f"{cell.name}: {len(requests)} requests, {duration_s:,.0f} s for each gateway", markup=False
        )
        outcomes = {}
        for name in [name for name in gateways if name not in failed]:
            options = _options(cell, gateways[name], arguments.model, headers)
            try:
                outcomes[name] = _drive(cell, arguments.first_seed, options, name)
            except EppError as error:
                failed[name] = f"{cell.name}: {error}"
        driven.append((cell, outcomes))
    return driven, failed


def _entry(
    cell: Cell, seed: int, outcomes: Mapping[str, Outcome], candidate: str, margin: float
) -> CellEntry:
    requests = cell.source.requests(seed)
    load: dict[str, Any] = asdict(describe(requests)) | {
        "time_scale": cell.time_scale,
        "load": cell.load,
        "max_in_flight": cell.max_in_flight,
        "closed_loop": any(r.after is not None for r in requests) and cell.closed_loop,
        "input_tokens_per_s": outcomes[candidate].figures.input_tokens_per_s,
    }
    return cell_entry(
        cell.name,
        load,
        {name: [outcome] for name, outcome in outcomes.items()},
        {},
        warmup_s=cell.warmup(requests),
        candidate=candidate,
        margin=margin,
        by_request=True,
        tuning=[],
    )


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, separator, value = text.partition(":")
        if not separator or not name.strip():
            raise EppError(f"--header {text!r} is not NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _options(cell: Cell, url: str, model: str, headers: dict[str, str]) -> LoadOptions:
    return LoadOptions(
        base_url=url,
        model=model,
        headers=headers,
        extra_body={"ignore_eos": True},
        time_scale=cell.pace,
        max_in_flight=cell.max_in_flight or _DEFAULT_IN_FLIGHT,
    )


def _drive(cell: Cell, seed: int, options: LoadOptions, name: str) -> Outcome:
    requests: tuple[TraceRequest, ...] = cell.source.requests(seed)
    if not cell.closed_loop:
        requests = tuple(replace(request, after=None, think_ms=0.0) for request in requests)
    done = 0
    with progress(sys.stderr) as step:

        def count(_: object) -> None:
            nonlocal done
            done += 1
            step(name, done, len(requests))

        results = asyncio.run(run_load(requests, options, on_result=count))
    if not any(result.ok for result in results):
        error = results[0].error if results else "nothing was sent"
        raise EppError(f"{name} answered no request: {error}")
    return outcome_of(cell, seed, from_live(results, len(requests)), columns=True)
