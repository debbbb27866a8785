"""Who prefills for whom: the cheapest worker for each endpoint that decodes, beside that endpoint alone.

The cost of a pair is that of `epp.policies.gorgo_ms`, its terms taken where the work is done: waiting, own
prefill and the stall of others at the worker that prefills, then the transfer, then the answer where it is
decoded. All of it separates into a column for each side, but for the link, which is as slow and as
full as the worse of its ends: so all pairs are a few sums of matrices.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.types import BACKLOG_MS, TOKEN_MS, Role, ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.types import Flags, Floats, RequestInfo, Rows, Signals, Snapshot

#: So many workers that fit the same endpoints are priced with them, those that have prefilled first.
MOST = 32


class Prefills(NamedTuple):
    """What a prefill takes at some endpoints, in ms; a column each.

    Attributes:
        own: of the prompt's uncached tokens.
        wait: for prefills sent before.
        price: the weighted price of ``own``.
        stall: the weighted price of what it takes from the requests that are there.
    """

    own: Floats
    wait: Floats
    price: Floats
    stall: Floats


class Pairs(NamedTuple):
    """All pairs of some workers, ``[workers, endpoints]``, in ms.

    Attributes:
        workers: their rows among all.
        prefills: of these.
        fit: who fits whom.
        transfer: of the prompt's KV cache, as far as the endpoint lacks it.
        link_wait: for what is on the link, beyond the time in which the worker prefills.
        first_token: from the worker's start to the first token; infinite where two do not fit.
    """

    workers: Rows
    prefills: Prefills
    fit: Flags
    transfer: Floats
    link_wait: Floats
    first_token: Floats


def fits(role: Role, workers: Snapshot, endpoints: Snapshot, rows: Rows | slice = slice(None)) -> Flags:
    """Tell who may do a part for whom, ``[workers, endpoints]``: others of the same group.

    ``rows`` are those of the workers that are asked about.
    """
    numbers: dict[object, int] = {}

    def numbered(keys: Iterable[object]) -> Rows:
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.intp)

    alike = numbered(groups_of(role, workers))[rows, None] == numbered(groups_of(role, endpoints))
    others = numbered(workers.endpoints)[rows, None] != numbered(endpoints.endpoints)
    fit: Flags = np.logical_and(alike, others)
    return fit


def groups_of(role: Role, seen: Snapshot) -> Iterable[tuple[str, ...]]:
    """Tell each endpoint's region, revision and name of the model; the parts of a request are done in one.

    For a prefill also its rank: llm-d's sidecar sends the header that names it to both engines, and an
    encoder no header (source: ``connector_nixlv2.go``, ``connector_sglang.go``, ``connector_ec_common.go``).
    """
    none = ("",) * len(seen)
    ranks = ranks_of(seen.endpoints) if role is Role.PREFILL else none
    return zip(seen.regions, seen.revisions or none, seen.models or none, ranks or none, strict=True)


def soonest(workers: Snapshot, prefills: Prefills, draw: float) -> Rows:
    """Find the workers of each group that have prefilled first, `MOST` at most.

    Where one is drawn in 0..1, equals count from there on.
    """
    rows = np.arange(len(workers))
    if len(rows) <= MOST:
        return rows
    turned = np.roll(rows, -int(draw * len(rows)))
    ready_ms = (prefills.wait + prefills.own)[turned]
    groups, taken, kept = list(groups_of(Role.PREFILL, workers)), Counter[tuple[str, ...]](), []
    for row in turned[np.argsort(ready_ms, kind="stable")].tolist():
        taken[groups[row]] += 1
        if taken[groups[row]] <= MOST:
            kept.append(row)
    return np.sort(np.array(kept, np.intp))


def pairs_of(
    workers: Snapshot, endpoints: Snapshot, prefills: Prefills, missing_tokens: Floats, draw: float
) -> Pairs:
    """Time the pairs of all workers, or of the soonest where they are many.

    Args:
        workers: who prefills.
        endpoints: who decodes.
        prefills: of the workers.
        missing_tokens: tokens of the prompt that each endpoint does not hold.
        draw: among workers that are as soon, in 0..1.
    """
    rows = soonest(workers, prefills, draw)
    prefills = Prefills(*(column[rows] for column in prefills))
    token_ms = np.maximum(workers.extra[TOKEN_MS][rows, None], endpoints.extra[TOKEN_MS])
    backlog_ms = np.maximum(workers.extra[BACKLOG_MS][rows, None], endpoints.extra[BACKLOG_MS])
    prefilled_ms = (prefills.wait + prefills.own)[:, None]
    link_wait = np.maximum(backlog_ms - prefilled_ms, 0.0)
    started_ms = endpoints.prefill_base_ms  # once the KV cache is there
    fit, transfer = fits(Role.PREFILL, workers, endpoints, rows), token_ms * missing_tokens
    first_token = np.where(fit, prefilled_ms + link_wait + transfer + started_ms, np.inf)
    return Pairs(rows, prefills, fit, transfer, link_wait, first_token)


def with_partners(
    alone: Mapping[str, Floats],
    paired: Mapping[str, Floats],
    pairs: Pairs,
    request: RequestInfo,
    seed: int,
    *,
    prefills: Flags,
) -> tuple[dict[str, Floats], Rows]:
    """Give each endpoint the cheapest worker, where that is cheaper than to do all alone.

    Args:
        alone: terms of each endpoint by itself.
        paired: terms of pairs, ``[workers, endpoints]``, which stand for those of the same names.
        pairs: who they are, and which there may be.
        request: keys the draw among equal workers.
        seed: likewise.
        prefills: who can do all alone; the others do while nobody fits them, for want of a better.

    Returns:
        The terms of each endpoint with its worker, and the workers as `Ranking.partners` has them.
    """
    costs = np.where(pairs.fit, reduce(add, paired.values()), np.inf)
    rows, columns = cheapest(costs, request, seed, "prefill"), np.arange(costs.shape[1])
    own = reduce(add, (alone[name] for name in paired if name in alone))
    best = costs[rows, columns]
    better = (best < own) | (~prefills & np.isfinite(best))
    terms = dict(alone)
    for name, values in paired.items():
        there = np.broadcast_to(values, costs.shape)[rows, columns]
        terms[name] = np.where(better, there, alone.get(name, 0.0))
    return terms, np.where(better, pairs.workers[rows], -1)[:, None]


def encoders(snapshot: Snapshot, request: RequestInfo, seed: int) -> Rows:
    """Find the encoder with the fewest requests for each endpoint, as `Ranking.partners` has them."""
    workers = snapshot.workers[Role.ENCODE]
    fit = fits(Role.ENCODE, workers, snapshot)
    busy = np.where(fit, workers.running_requests[:, None], np.inf)
    rows = cheapest(busy, request, seed, "encode")
    return np.where(fit.any(axis=0), rows, -1)[:, None]


def room_ms(request: RequestInfo, now: Signals[Floats]) -> Floats:
    """Estimate how long a token of the answer is held up where the KV cache has no room for the request.

    The requests there give all that they hold back within an answer's length, evenly. What their engine told
    or we have sent there counts, whichever is more; where no capacity is known there is room.
    """
    used, usage = np.maximum(now.engine_used_tokens, 1.0), now.engine_kv_usage
    capacity = np.where(usage > 0.0, used / np.maximum(usage, 1e-9), np.inf)
    held = np.maximum(used, now.decoding_tokens)
    missing = held + request.prompt_tokens + request.expected_output_tokens - capacity
    share = np.clip(missing / held, 0.0, 1.0)
    return share * (now.decode_base_ms + now.decode_ms_per_request * now.running_requests)


def cheapest(costs: Floats, request: RequestInfo, seed: int, name: str) -> Rows:
    """Find the cheapest worker for each endpoint, of equals by a keyed draw; any where nobody fits.

    Args:
        costs: ``[workers, endpoints]``.
        request: keys the draw.
        seed: likewise.
        name: likewise.
    """
    first = int(keyed_uniform(seed, request.decision_id, name) * len(costs))
    rows: Rows = (np.roll(costs, -first, axis=0).argmin(axis=0) + first) % len(costs)
    return rows
