"""From costs to a choice: slow-start admission, the tie band, the keyed draw, fallbacks.

Pure functions over columns. The order of events, which `epp.schedule.propensities` describes exactly:

1. Every endpoint that is warming up is admitted with its share (0..1), by its own keyed draw; the others
   always are. One whose share is 0, because it has no proof that it answers while others have, never is. When
   nobody is admitted, everybody with a share is.
2. The best admitted cost opens a band; every admitted endpoint within it is equally likely.
3. Fallbacks are the other admitted endpoints by cost, then the endpoints that were not admitted, those with
   a share first. Where engines have different names for the model only those follow that use the chosen
   endpoint's: a body is written once. The same holds for data-parallel ranks, which a header names.
4. Where the chosen endpoint is a peer region and so are all fallbacks, the last of them gives way to the
   cheapest local endpoint: a region that refuses or cannot be reached costs no more than its round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from epp.keyed_uniform import keyed_uniform
from epp.types import PEER_CLASS, ranks_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from epp.types import Flags, Floats, Snapshot


#: Up to so many endpoints a loop is cheaper than the calls into columns that it would take.
_FEW = 64
#: The least share of an endpoint with proof, beside others without.
LEAST_SHARE = 1e-9
#: Costs this close are equal whatever the band: sums of the same terms in another order.
ROUNDING = 1e-9


class Selection(Struct, frozen=True):
    """Indices into the ranked columns.

    Attributes:
        chosen: the first choice.
        fallbacks: further choices in order.
        tied: how many endpoints the draw was among.
        slow_start_excluded: endpoints kept out of this decision by slow start, or because they have no proof.
    """

    chosen: int
    fallbacks: tuple[int, ...]
    tied: int
    slow_start_excluded: tuple[int, ...]


def tolerance_limit(best: float, tolerance: float) -> float:
    """Highest cost that counts as equal to ``best``."""
    return best + max(tolerance * abs(best), ROUNDING * max(1.0, abs(best)))


def select(
    costs: Floats,
    slow_start_weights: Floats | None,
    names: Sequence[str],
    *,
    tolerance: float,
    fallbacks: int,
    seed: int,
    key: str,
    kinds: Sequence[Hashable] = (),
) -> Selection:
    """Choose among endpoints.

    Args:
        costs: finite cost of each, non-empty.
        slow_start_weights: slow-start share of each in 0..1, 0 for those without proof; None when all are 1.
        names: endpoint addresses, the salts of the admission draws.
        tolerance: relative width of the band of equals.
        fallbacks: how many further choices to name.
        seed: seed of the draws.
        key: decision id.
        kinds: of each, as `kinds_of` tells them.
    """
    if slow_start_weights is None and not kinds and len(costs) <= _FEW:
        return _select_few(costs.tolist(), tolerance=tolerance, fallbacks=fallbacks, seed=seed, key=key)
    excluded: tuple[int, ...] = ()
    admitted_costs = costs
    if slow_start_weights is not None:
        admitted = _admit(slow_start_weights, names, seed, key)
        if not admitted.all():
            excluded = tuple(np.flatnonzero(~admitted).tolist())
            admitted_costs = np.where(admitted, costs, np.inf)
            costs = np.where(slow_start_weights > 0.0, costs, np.inf)  # the last fallbacks
    limit = tolerance_limit(float(admitted_costs.min()), tolerance)
    tied = np.flatnonzero(admitted_costs <= limit)
    chosen = int(tied[0])
    if len(tied) > 1:
        chosen = int(tied[int(keyed_uniform(seed, key, "tie") * len(tied))])
    order: tuple[int, ...] = ()
    if fallbacks and kinds:
        rows = np.array([row for row, kind in enumerate(kinds) if kind == kinds[chosen]], dtype=np.intp)
        place = int(np.searchsorted(rows, chosen))
        near = _cheapest(admitted_costs[rows], costs[rows], place, fallbacks)
        order = tuple(int(rows[index]) for index in near)
    elif fallbacks:
        order = tuple(_cheapest(admitted_costs, costs, chosen, fallbacks))
    return Selection(chosen, order, len(tied), excluded)


def kinds_of(seen: Snapshot) -> Sequence[Hashable]:
    """Tell what fallbacks have in common with the chosen endpoint: its name for the model, and its rank.

    Empty where all do.
    """
    ranks = ranks_of(seen.endpoints)
    return list(zip(seen.models or ranks, ranks, strict=True)) if ranks else seen.models


def with_local(selection: Selection, costs: Floats, snapshot: Snapshot) -> Selection:
    """Let the fallbacks of a peer region name a local endpoint, if any may serve."""
    models = snapshot.models or ("",) * len(costs)
    local = {
        row
        for row, engine_class in enumerate(snapshot.engine_classes)
        if engine_class != PEER_CLASS and models[row] == models[selection.chosen]
    }
    if not local or not local.isdisjoint((selection.chosen, *selection.fallbacks)):
        return selection
    cheapest = min(local, key=lambda row: (row in selection.slow_start_excluded, costs[row]))
    return replace(selection, fallbacks=(*selection.fallbacks[:-1], cheapest))


def _select_few(costs: list[float], *, tolerance: float, fallbacks: int, seed: int, key: str) -> Selection:
    """The same for few endpoints that all may be chosen and have one name for the model."""
    limit = tolerance_limit(min(costs), tolerance)
    tied = [index for index, cost in enumerate(costs) if cost <= limit]
    chosen = tied[0] if len(tied) == 1 else tied[int(keyed_uniform(seed, key, "tie") * len(tied))]
    order: list[int] = []
    if fallbacks:
        by_cost = sorted(range(len(costs)), key=costs.__getitem__)
        order = [index for index in by_cost if index != chosen][:fallbacks]
    return Selection(chosen, tuple(order), len(tied), ())


def _admit(shares: Floats, names: Sequence[str], seed: int, key: str) -> Flags:
    admitted = shares >= 1.0
    for index in np.flatnonzero(~admitted & (shares > 0.0)).tolist():
        admitted[index] = keyed_uniform(seed, key, f"warmup {names[index]}") < shares[index]
    if admitted.any():
        return admitted
    with_share = shares > 0.0
    return with_share if with_share.any() else ~with_share


def _cheapest(admitted_costs: Floats, costs: Floats, chosen: int, count: int) -> list[int]:
    wanted = min(len(costs), count + 1)
    near = np.arange(len(costs))
    if wanted < len(costs) // 4:
        nearest = np.argpartition(admitted_costs, wanted - 1)[:wanted]
        if np.isfinite(admitted_costs[nearest[-1]]):  # else those held back, all alike there, are among them
            near = nearest
    # Held-back endpoints have an infinite admitted cost: they come last, in the order of their true costs.
    order = near[np.lexsort((near, costs[near], admitted_costs[near]))]
    return [int(index) for index in order if index != chosen][:count]
