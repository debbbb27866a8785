"""`epp replay --over-http`: the same loads and statistics, sent to live gateways.

Owns the order of runs and the terminal while they run. Gateways are driven one after the other with the same
requests; latencies count from the intended send time (`epp.replay.load`). What differs between gateways may
also be the time at which each was driven, and nothing here can tell: repeat in another order to see.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from epp.errors import EppError
from epp.replay.cells import cells_of, is_sweep
from epp.replay.comparison import cell_entry
from epp.replay.console import progress
from epp.replay.document import SCHEMA, Document
from epp.replay.load import LoadOptions, run_load
from epp.replay.measure import from_live
from epp.replay.simulate import outcome_of
from epp.replay.trace_stats import describe

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from epp.replay.plan import Cell
    from epp.replay.simulate import Outcome
    from epp.replay.trace import TraceRequest

_DEFAULT_IN_FLIGHT = 1024


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


def compare_gateways(arguments: argparse.Namespace, console: Console) -> Document:
    """Drive each gateway with each load, sum up, compare within the load.

    Raises:
        EppError: flags that make no sense live, or a gateway that answered nothing.
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
    seed = arguments.first_seed
    entries = []
    for cell in cells:
        requests = cell.source.requests(seed)
        cell.check_length(requests)
        duration_s, warmup_s = requests[-1].at_ms * cell.pace / 1000.0, cell.warmup(requests)
        console.print(f"{cell.name}: {len(requests)} requests, {duration_s:,.0f} s for each gateway")
        outcomes: dict[str, list[Outcome]] = {}
        for name, url in gateways.items():
            options = _options(cell, url, arguments.model, headers)
            outcomes[name] = [_drive(cell, seed, options, name)]
        load: dict[str, Any] = asdict(describe(requests)) | {
            "time_scale": cell.time_scale,
            "load": cell.load,
            "max_in_flight": cell.max_in_flight,
            "closed_loop": any(r.after is not None for r in requests) and cell.closed_loop,
            "input_tokens_per_s": outcomes[candidate][0].figures.input_tokens_per_s,
        }
        entries.append(
            cell_entry(
                cell.name,
                load,
                outcomes,
                {},
                warmup_s=warmup_s,
                candidate=candidate,
                margin=arguments.margin / 100.0,
                by_request=True,
                tuning=[],
            )
        )
    return Document(
        schema=SCHEMA,
        fleet=[],
        seeds=[seed],
        candidate=candidate,
        margin=arguments.margin / 100.0,
        cells=entries,
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
