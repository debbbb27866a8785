"""The demo's own stack: its records agree with what the client saw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epp.records.files import read_records
from epp.records.schema import join
from epp_lab.compare.load import LoadOptions, RequestResult, run_load
from epp_lab.demo.command import REPLICAS
from epp_lab.demo.stack import MODEL, Stack
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.records import ended
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Pair = tuple[RequestResult, Mapping[str, Any]]

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

#: Client and Envoy are two processes on one busy machine: most requests are this near, or by this share of what they took.
NEAR_MS, NEAR_SHARE = 30.0, 0.25
#: The client's span of a request holds Envoy's; the two clocks are read at different instants.
CLOCKS_MS = 3.0


def pair(folder: Path, results: Sequence[RequestResult]) -> list[Pair]:
    """Pair results that ended well with the outcome on record, by decision id."""
    outcomes = {request.decision["id"]: request.outcome for request in join(read_records(folder))}
    pairs = ((seen, outcomes.get(seen.decision_id)) for seen in results if seen.ok)
    return [(seen, outcome) for seen, outcome in pairs if outcome is not None]


def both(pairs: Sequence[Pair], fact: str) -> list[tuple[float, float]]:
    """List the client's and the record's values of a latency, where the client has one.

    The client counts from the moment at which it should have sent; what it was late with no picker can know.
    """
    values = [(getattr(seen, fact), seen.slip_ms, outcome[fact]) for seen, outcome in pairs]
    return [(client - slip_ms, record) for client, slip_ms, record in values if client is not None]


@dataclass(frozen=True)
class Ran:
    results: list[RequestResult]
    pairs: list[Pair]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("demo")
    load = generate(replace(DEMO, duration_s=7.0, rate_rps=16.0), 1)
    policy, patient = {"policy": {"name": "gorgo"}}, {"message_timeout_ms": 5000}
    async with Stack(folder, REPLICAS, policy, envoy=patient) as stack:
        results = await run_load(load, LoadOptions(base_url=stack.url, model=MODEL))
        await until(lambda: ended(folder / "records") == len(results))
    return Ran(results, pair(folder / "records", results))


async def test_every_request_is_on_record_with_every_fact_and_its_source(ran: Ran) -> None:
    assert len(ran.results) > 100
    assert all(seen.ok for seen in ran.results)
    assert len(ran.pairs) == len(ran.results)
    for _, outcome in ran.pairs:
        assert (outcome["cause"], outcome["status"], outcome["attempts"]) == ("completed", 200, 1)
        assert outcome["served"] == outcome["endpoint"]
        assert outcome["chunks"] >= 2
        assert outcome["response_bytes"] > 100
        known = {fact for fact in outcome["sources"] if outcome[fact] is None}
        assert not known
        assert set(outcome["sources"].values()) == {"envoy"}
        assert {"ttft_ms", "e2e_ms", "cached_tokens", "served"} <= outcome["sources"].keys()


@pytest.mark.parametrize("fact", ["ttft_ms", "e2e_ms"])
async def test_latencies_are_what_the_client_saw(ran: Ran, fact: str) -> None:
    values = both(ran.pairs, fact)
    assert len(values) == len(ran.pairs)
    later = [client - record for client, record in values]
    assert median(later) < NEAR_MS + NEAR_SHARE * median(client for client, _ in values)
    earlier = [difference for difference in later if difference < -CLOCKS_MS]
    assert len(earlier) <= 0.05 * len(later), sorted(later)


async def test_tokens_are_exactly_what_the_client_was_told(ran: Ran) -> None:
    for fact in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        for seen, outcome in ran.pairs:
            assert getattr(seen, fact) == outcome[fact], fact
    assert sum(outcome["cached_tokens"] for _, outcome in ran.pairs) > 10_000
