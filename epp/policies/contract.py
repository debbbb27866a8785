"""The contract that every policy is held to: `python -m epp.policies.contract NAME` for an installed one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.policies.base import Need
from epp.policies.registry import create
from epp.types import FILLABLE_COLUMNS, NUMERIC_COLUMNS, RequestInfo, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator
    from numpy.typing import NDArray

    from epp.policies.base import Policy

#: Rows of a snapshot that are 0 where nobody needs the prompt.
_OF_PROMPTS = np.isin(NUMERIC_COLUMNS, ("cached_tokens", "uncached_tokens"))[:, None]


def breaches(
    policy: Policy, fleets: int = 100, *, in_order: bool = False, tolerance: float = 0.0
) -> Iterator[str]:
    """Try a policy on random fleets and yield what it does wrong.

    Args:
        policy: the policy.
        fleets: how many to try.
        in_order: whether the order of the endpoints may decide.
        tolerance: how far apart, relative to the largest cost, two costs may be that are equal.
    """
    random, weights = np.random.default_rng(1), policy.default_weights()
    moved = dict.fromkeys(weights, False)
    for number in range(fleets):
        snapshot, request = _fleet(random), _request(random, number)
        before = snapshot.block.copy()
        ranking = policy.rank(request, snapshot, weights, number)
        costs = ranking.costs.copy()
        wrong = [
            name
            for name, column in {"costs": costs, **ranking.terms}.items()
            if np.shape(column) != (len(snapshot),) or not np.isfinite(column).all()
        ]
        if wrong:
            yield f"not one finite number per endpoint: {', '.join(wrong)}"
            continue
        if Need.PROMPT not in policy.needs:
            unread = replace(snapshot, block=np.where(_OF_PROMPTS, 0.0, snapshot.block))
            bare = policy.rank(replace(request, prompt_tokens=0), unread, weights, number)
            if not np.array_equal(bare.costs, costs):
                yield "it reads the prompt, but its needs lack Need.PROMPT: served, these columns are 0"
        if not np.array_equal(snapshot.block, before):
            yield "it changes its inputs"
        if not np.array_equal(policy.rank(request, snapshot, weights, number).costs, costs):
            yield "the same inputs give other costs"
        apart = tolerance * float(np.abs(costs).max())
        order = random.permutation(len(snapshot))
        turned = policy.rank(request, _turned(snapshot, order), weights, number).costs
        if not in_order and not np.allclose(turned, costs[order], rtol=0.0, atol=apart):
            yield "the order of the endpoints decides"
        if not _stays_behind(policy, request, snapshot, random, apart):
            yield "a value that is not known makes an endpoint cheaper"
        for name, spec in policy.weight_specs.items():
            for value in (spec.low, spec.high):
                tried = policy.rank(request, snapshot, {**weights, name: value}, number).costs
                moved[name] |= not np.array_equal(tried, costs)
                if not np.isfinite(tried).all():
                    yield f"weight {name} at {value} makes a cost that is not finite"
    yield from (f"weight {name} does nothing" for name, done in moved.items() if not done)


def _stays_behind(
    policy: Policy, request: RequestInfo, snapshot: Snapshot, random: Generator, apart: float
) -> bool:
    """Tell whether an endpoint whose value was filled stands behind as many as with another's value."""
    count, column = len(snapshot), str(random.choice(FILLABLE_COLUMNS))
    at, row = int(random.integers(count)), NUMERIC_COLUMNS.index(column)
    others = np.delete(snapshot.block[row], at)
    known, filled = snapshot.block.copy(), snapshot.block.copy()
    known[row, at], filled[row, at] = random.choice(others), others.max()
    weights, unknown = policy.default_weights(), {column: np.arange(count) == at}
    before = policy.rank(request, replace(snapshot, block=known), weights, 1).costs
    after = policy.rank(request, replace(snapshot, block=filled, unknown=unknown), weights, 1).costs
    better = (before < before[at] - apart).sum()
    return bool(after[at] >= before[at] - apart and (after < after[at] + apart).sum() >= better)


def _fleet(random: Generator) -> Snapshot:
    """Make a fleet with ties, zeros, plausible numbers and absurd ones."""
    count, columns = int(random.integers(2, 7)), len(NUMERIC_COLUMNS)
    scale = random.choice([3.0, 300.0, 30_000.0, 1e12], (columns, 1), p=(0.3, 0.3, 0.35, 0.05))
    block = np.floor(random.random((columns, count)) * scale) * (random.random((columns, count)) < 0.7)
    names = tuple(f"10.0.0.{place}:8000" for place in range(count))
    return Snapshot(names, ("",) * count, ("",) * count, block, models=names)


def _turned(snapshot: Snapshot, order: NDArray[np.int64]) -> Snapshot:
    names = tuple(snapshot.endpoints[place] for place in order)
    return replace(snapshot, endpoints=names, block=snapshot.block[:, order], models=names)


def _request(random: Generator, number: int) -> RequestInfo:
    key = str(random.choice(["", "s"]))
    return RequestInfo(
        decision_id=f"d-{number}",
        prompt_tokens=int(random.choice([0, 100, 4000, 200_000])),
        affinity_key=key,
        prefix_key=key,
        sequence=number,
        expected_output_tokens=100.0,
        tried_models=("10.0.0.0:8000",) * (number % 2),
    )


def main(argv: list[str] | None = None) -> str | int:
    """Try policies by name; what they do wrong, 0 for nothing."""
    parser = argparse.ArgumentParser(prog="python -m epp.policies.contract", description="Try policies.")
    parser.add_argument("name", nargs="+", help="name of an installed policy")
    found: dict[str, None] = {}
    for name in parser.parse_args(argv).name:
        try:
            policy = create(name, source="command line", key="name")
        except ConfigError as error:
            return str(error)
        if policy.name != name:
            found[f"{name}: its class has the name {policy.name!r}"] = None
        found |= dict.fromkeys(f"{name}: {breach}" for breach in breaches(policy))
    return "\n".join(found) or 0


if __name__ == "__main__":
    sys.exit(main())
