"""Live gateways under the loads and statistics of a comparison: `epp lab compare --over-http`.

Gateways are driven one after the other with the same requests; latencies count from the intended send time
(`epp_lab.compare.load`). What differs between gateways may also be the time at which each was driven, and
nothing here can tell: repeat in another order to see.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import aiohttp

from epp.errors import EppError
from epp_lab.compare.load import LoadOptions, run_load
from epp_lab.compare.measure import from_live
from epp_lab.compare.simulate import outcome_of
from epp_lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.plan import PlanCell
    from epp_lab.compare.simulate import Outcome
    from epp_lab.progress import Step

_DEFAULT_IN_FLIGHT = 1024
#: After so many answers their TTFT is told, and then whenever they are twice as many.
_FIRST_SAID = 16
#: A gateway that has not answered by then is not there.
_CHECK_S = 10.0


def drive_gateways(
    cells: Sequence[PlanCell],
    urls: Mapping[str, str],
    seed: int,
    *,
    model: str,
    headers: Mapping[str, str],
    step: Step,
) -> tuple[dict[str, list[Outcome]], list[str]]:
    """Drive each gateway with each load.

    Args:
        cells: the loads.
        urls: of gateways by name.
        seed: of the loads.
        model: name sent.
        headers: sent along.
        step: called with a gateway's name, requests answered, all requests of the load, and its TTFT so far.

    Returns:
        Outcomes by gateway, one a cell, and a sentence for each gateway that is left out because it answered
        nothing to a load.

    Raises:
        EppError: flags that make no sense, a gateway that is not there, or none that answered.
    """
    for cell in cells:  # before anything is driven
        cell.warmup(cell.source.requests(seed))
    asyncio.run(_check_there(urls, headers))
    driven: dict[str, list[Outcome]] = {}
    failed = []
    for name, url in urls.items():
        try:
            driven[name] = [
                _drive(
                    cell,
                    seed,
                    LoadOptions(
                        base_url=url,
                        model=model,
                        headers=headers,
                        extra_body={"ignore_eos": True},
                        time_scale=cell.pace,
                        max_in_flight=cell.max_in_flight or _DEFAULT_IN_FLIGHT,
                    ),
                    name,
                    step,
                )
                for cell in cells
            ]
        except EppError as error:
            failed.append(str(error))
    if not driven:
        raise EppError("; ".join(failed))
    return driven, failed


def parse_gateways(texts: Sequence[str]) -> dict[str, str]:
    """Return URLs of gateways by name; one without a name is called by its host and port.

    Raises:
        EppError: something that is no URL, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, separator, url = text.partition("=")
        if not separator or "://" in name:
            name, url = text.split("://", 1)[-1].rstrip("/"), text
        if not url.startswith(("http://", "https://")):
            raise EppError(f"{text}: not a URL such as http://127.0.0.1:8080")
        if name in found:
            raise EppError(f"{name} is named twice")
        found[name] = url
    return found


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


def _drive(cell: PlanCell, seed: int, options: LoadOptions, name: str, step: Step) -> Outcome:
    requests = cell.source.requests(seed)
    title, done = f"{name}, {cell.name}", count(1)
    ttfts_ms: list[float] = []

    def answered(result: RequestResult) -> None:
        said = ""
        if result.ttft_ms is not None:
            ttfts_ms.append(result.ttft_ms)
            answers = len(ttfts_ms)
            if answers >= _FIRST_SAID and answers.bit_count() == 1:
                said = f"{title}: TTFT p95 of {answers} answers: {percentile(ttfts_ms, 95):,.0f} ms"
        step(title, next(done), len(requests), said)

    results = asyncio.run(run_load(requests, options, on_result=answered))
    if not any(result.ok for result in results):
        raise EppError(f"{cell.name}: {name} answered no request: {results[0].error}")
    return outcome_of(cell, seed, from_live(results, len(requests)))
