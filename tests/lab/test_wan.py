"""The cross-region paper's Tables 2 to 5 in direction."""

from __future__ import annotations

import numpy as np
import pytest

from epp.lab.experiments.wan import TABLES, run


@pytest.fixture(scope="module")
def tables() -> dict[str, tuple[float, float]]:
    """Geometric means over seeds, (median, p99) by the tables' names."""
    found = {}
    for name in set(TABLES) - {"gorgo-ms"}:
        runs = [run("three regions", name, seed) for seed in (1, 2, 3)]
        logs = np.log([[figures["TTFT p50 ms"], figures["TTFT p99 ms"]] for figures in runs])
        median, p99 = np.exp(logs.mean(axis=0)).tolist()
        found[name] = (median, p99)
    return found


def test_the_proxy_has_the_best_median_and_least_load_the_worst(
    tables: dict[str, tuple[float, float]],
) -> None:
    median = {name: values[0] for name, values in tables.items()}
    assert median["gorgo-proxy"] == min(median.values())
    assert median["least-load"] == max(median.values())
    assert median["gorgo"] < median["prefix-trie"]


def test_both_gorgos_have_better_tails_than_both_baselines(tables: dict[str, tuple[float, float]]) -> None:
    p99 = {name: values[1] for name, values in tables.items()}
    assert max(p99["gorgo"], p99["gorgo-proxy"]) < min(p99["least-load"], p99["prefix-trie"])
