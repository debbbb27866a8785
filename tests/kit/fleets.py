"""Builders of what policies see, for tests: a fleet by the columns that matter, everything else even."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.policies.registry import POLICIES
from epp.types import NUMERIC_COLUMNS, RequestInfo, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from numpy.typing import NDArray

    from epp.policies.base import Policy


def fleet_view(
    count: int = 3,
    *,
    names: Sequence[str] = (),
    regions: Sequence[str] = (),
    engine_classes: Sequence[str] = (),
    models: Sequence[str] = (),
    **columns: Sequence[float] | NDArray[Any],
) -> Snapshot:
    """A fleet of ``count`` endpoints ``10.0.0.<i>:8000``; columns not given are 0, hit ratios,
    success and upload rounds 1, texts empty."""
    unexpected = columns.keys() - set(NUMERIC_COLUMNS)
    assert not unexpected, f"no such columns: {unexpected}"
    values: dict[str, Any] = {name: np.zeros(count) for name in NUMERIC_COLUMNS}
    values["hit_ratio"] = np.ones(count)
    values["success"] = np.ones(count)
    values["upload_rounds"] = np.ones(count)
    for name, column in columns.items():
        values[name] = np.array(column, dtype=np.float64)
        assert values[name].shape == (count,), name
    endpoints = tuple(names) or tuple(f"10.0.{i // 250}.{i % 250}:8000" for i in range(count))
    return Snapshot(
        endpoints,
        tuple(regions) or ("",) * count,
        tuple(engine_classes) or ("",) * count,
        np.array([values[name] for name in NUMERIC_COLUMNS]),
        models=tuple(models),
    )


def permuted(snapshot: Snapshot, order: Sequence[int]) -> Snapshot:
    """The same fleet with its endpoints in another order."""
    index = list(order)
    texts: dict[str, Any] = {
        name: tuple(getattr(snapshot, name)[i] for i in index)
        for name in ("endpoints", "regions", "engine_classes", "models")
        if getattr(snapshot, name)
    }
    unknown = {name: mask[index] for name, mask in snapshot.unknown.items()}
    return replace(snapshot, block=snapshot.block[:, index], **texts, unknown=unknown)


def with_unknown(snapshot: Snapshot, column: str, index: int) -> Snapshot:
    """The same fleet with one value not known: filled with the worst of the column, and marked."""
    values: NDArray[np.float64] = getattr(snapshot, column).copy()
    mask = np.zeros(len(values), np.bool_)
    mask[index] = True
    values[index] = values[~mask].max(initial=0.0)
    block = snapshot.block.copy()
    block[NUMERIC_COLUMNS.index(column)] = values
    return replace(snapshot, block=block, unknown={**snapshot.unknown, column: mask})


def request(decision_id: str = "d-1", **fields: Any) -> RequestInfo:
    """A request; fields of `RequestInfo` by name."""
    return RequestInfo(decision_id=decision_id, **fields)


def register(patch: pytest.MonkeyPatch, policy: type[Policy]) -> None:
    """Register a policy as a package's entry point does, until the test ends."""
    point = EntryPoint(policy.name, f"{policy.__module__}:{policy.__name__}", "epp.policies")
    patch.setitem(POLICIES, policy.name, point)


def plausible_fleets(count: int, prompt_tokens: int = 4000) -> list[Snapshot]:
    """Different fleets of four with values as in life, the same ones every time."""
    random = np.random.default_rng(4)
    made = []
    for _ in range(count):
        scale = random.choice([3, 30, 300])
        running, decoding = random.integers(0, scale, 4), random.integers(0, scale, 4)
        cached = random.choice([0, 500, 2000, 3500], 4)
        made.append(
            fleet_view(
                4,
                rtt_ms=random.choice([20, 50, 100, 200], 4),
                cached_tokens=cached,
                uncached_tokens=prompt_tokens - cached,
                queued_tokens=running * 2000 + decoding * 10,
                pending_uncached_tokens=random.choice([0, 1000, 8000], 4),
                running_requests=running + decoding,
                decoding_requests=decoding,
                decoding_tokens=decoding * 2100,
                engine_running=running,
                engine_waiting=random.integers(0, 5, 4),
                engine_kv_usage=random.random(4),
                engine_used_tokens=random.integers(0, 100_000, 4),
                engine_age_ms=random.integers(0, 5000, 4),
                prefill_base_ms=[80.0] * 4,
                prefill_ms_per_token=random.choice([0.02, 0.06, 0.2], 4),
                decode_base_ms=[8.0] * 4,
                decode_ms_per_request=[1.5] * 4,
                success=random.choice([0.1, 0.5, 0.9], 4),
                models=("m-0", "m-1", "m-2", "m-3"),
            )
        )
    return made


_AMOUNTS = st.one_of(st.just(0.0), st.floats(0.0, 1e12, allow_subnormal=False), st.integers(0, 50).map(float))


@st.composite
def fleets(draw: st.DrawFn, min_size: int = 1, max_size: int = 6) -> Snapshot:
    """Fleets with any values that signals can have, ties and zeros among them."""
    count = draw(st.integers(min_size, max_size))
    size = count * len(NUMERIC_COLUMNS)
    values = draw(st.lists(_AMOUNTS, min_size=size, max_size=size))
    columns: dict[str, Any] = {
        name: values[i * count : (i + 1) * count] for i, name in enumerate(NUMERIC_COLUMNS)
    }
    models = draw(st.sampled_from([(), tuple(f"m-{i % 2}" for i in range(count))]))
    return fleet_view(count, models=models, **columns)


def requests() -> st.SearchStrategy[RequestInfo]:
    """Requests with and without a session, early and late in the life of a picker."""
    return st.builds(
        RequestInfo,
        decision_id=st.text(min_size=1, max_size=12),
        prompt_tokens=st.integers(0, 200_000),
        affinity_key=st.one_of(st.just(""), st.text(max_size=12)),
        prefix_key=st.one_of(st.just(""), st.text(max_size=12)),
        sequence=st.integers(0, 2**70),
        tried_models=st.sampled_from([(), ("m-0",), ("m-0", "m-1"), ("no such model",)]),
    )
