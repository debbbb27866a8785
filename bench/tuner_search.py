"""Searches beside each other on a noisy surface like that of a policy's weights: regret by measurements.

The surface: log p95 over the unit cube of log weights, a tilted bowl that is flat near its lowest point (a
tenth of the range off costs about 1 %) and steep beyond a threshold on one side (a queue without a price);
noise of 3 % (a 30-minute window), a heavy tail of stragglers. Regret is the true cost of what is recommended
over the lowest there is. Libraries are measured where installed: `pip install cmaes nevergrad optuna`.

    python -m bench.tuner_search --runs 40
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.tuner_surface import SurfaceSearch
from epp.tuner.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NOISE = 0.03
BUDGETS = (40, 120)
_BASE = 1e3


class Surface:
    """One random surface of a given size; counts what it is asked."""

    def __init__(self, size: int, seed: int) -> None:
        rng = np.random.default_rng([size, seed])
        self.size = size
        self.low = rng.uniform(0.25, 0.75, size)
        turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
        self._shape = turn @ np.diag(rng.uniform(0.5, 3.0, size)) @ turn.T
        self.start = np.clip(self.low + rng.choice([-1, 1], size) * rng.uniform(0.15, 0.3, size), 0.0, 1.0)
        self._noise = np.random.default_rng([size, seed, 1])

    def true(self, x: Floats) -> float:
        """Log cost over the lowest."""
        d = x - self.low
        cliff = max(0.0, 0.12 - x[0]) * 8.0
        return float(0.5 * d @ self._shape @ d + cliff)

    def measured(self, x: Floats) -> float:
        """The same with noise; now and then a straggler."""
        rough = NOISE * self._noise.normal()
        return (
            self.true(x) + rough + (abs(self._noise.normal()) * 0.2 if self._noise.random() < 0.05 else 0.0)
        )


def ours(surface: Surface, budget: int, seed: int) -> Floats:
    """The default: `cmaes` behind our scale, one measurement in eight spent on the incumbent."""
    start, bounds, unit = _scaled(surface)
    search = Search(start, bounds, seed=seed)
    while not search.stop(budget=budget):
        search.tell(surface.measured(unit(search.ask())))
    return unit(search.recommend())


def fitted(surface: Surface, budget: int, seed: int) -> Floats:
    """The search of ours that lost."""
    start, bounds, unit = _scaled(surface)
    search = SurfaceSearch(start, bounds, seed=seed)
    while search.told < budget:
        asked = search.ask()
        search.tell(asked, surface.measured(unit(asked)))
    return unit(search.recommend())


def _scaled(
    surface: Surface,
) -> tuple[dict[str, float], dict[str, tuple[float, float]], Callable[[dict[str, float]], Floats]]:
    names = [f"w{i}" for i in range(surface.size)]
    start = {name: _BASE**v for name, v in zip(names, surface.start, strict=True)}
    return start, dict.fromkeys(names, (1.0, _BASE)), _unit(names)


def _unit(names: list[str]) -> Callable[[dict[str, float]], Floats]:
    return lambda weights: np.array([math.log(weights[name]) / math.log(_BASE) for name in names])


def one_plus_one(surface: Surface, budget: int, seed: int) -> Floats:
    """The published rule, given disjoint windows: a lucky incumbent is kept."""
    rng = np.random.default_rng(seed)
    best, sigma = surface.start, 0.5 / math.log(_BASE)
    accepted: list[bool] = []
    best_cost = surface.measured(best)
    for _ in range(budget - 1):
        x = np.clip(best + sigma * rng.normal(size=surface.size), 0.0, 1.0)
        cost = surface.measured(x)
        accepted = [*accepted, cost < best_cost + 0.005][-8:]
        if accepted[-1]:
            best, best_cost = x, cost
        if len(accepted) == 8:
            sigma *= 1 / 0.817 if sum(accepted) > 1.6 else 0.817
    return best


def cma(surface: Surface, budget: int, seed: int) -> Floats:
    """CMA-ES from `cmaes`, with its learning rates adapted to noise."""
    from cmaes import CMA  # noqa: PLC0415 - measured where installed

    optimizer = CMA(
        mean=surface.start,
        sigma=0.15,
        bounds=np.tile([0.0, 1.0], (surface.size, 1)),
        seed=seed,
        lr_adapt=True,
    )
    left = budget
    while left >= optimizer.population_size:
        told = []
        for _ in range(optimizer.population_size):
            x = optimizer.ask()
            told.append((x, surface.measured(x)))
        optimizer.tell(told)
        left -= optimizer.population_size
    return np.asarray(optimizer._mean, dtype=float)  # noqa: SLF001 - the mean is what it recommends under noise


def nevergrad(name: str) -> Callable[[Surface, int, int], Floats]:
    """An optimizer of nevergrad by name."""

    def run(surface: Surface, budget: int, seed: int) -> Floats:
        import nevergrad as ng  # type: ignore[import-not-found]  # noqa: PLC0415 - measured where installed

        space = ng.p.Array(init=surface.start).set_bounds(0.0, 1.0).set_mutation(sigma=0.15)
        space.random_state.seed(seed)
        optimizer = ng.optimizers.registry[name](parametrization=space, budget=budget)
        for _ in range(budget):
            asked = optimizer.ask()
            optimizer.tell(asked, surface.measured(asked.value))
        return np.asarray(optimizer.provide_recommendation().value, dtype=float)

    return run


def tpe(surface: Surface, budget: int, seed: int) -> Floats:
    """Optuna's default."""
    import optuna  # type: ignore[import-not-found]  # noqa: PLC0415 - measured where installed

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({f"x{i}": float(v) for i, v in enumerate(surface.start)})
    study.optimize(
        lambda trial: surface.measured(
            np.array([trial.suggest_float(f"x{i}", 0.0, 1.0) for i in range(surface.size)])
        ),
        n_trials=budget,
    )
    return np.array([study.best_params[f"x{i}"] for i in range(surface.size)])


def searches() -> dict[str, Callable[[Surface, int, int], Floats]]:
    """Those that can be run here."""
    found: dict[str, Any] = {"start": lambda s, _b, _r: s.start, "default": ours}
    found |= {"(1+1)-ES": one_plus_one, "fitted quadratic": fitted}
    if importlib.util.find_spec("cmaes"):
        found["cmaes, lr_adapt"] = cma
    if importlib.util.find_spec("nevergrad"):
        for name in ("TBPSA", "OptimisticNoisyOnePlusOne"):
            found[f"nevergrad {name}"] = nevergrad(name)
    if importlib.util.find_spec("optuna"):
        found["optuna TPE"] = tpe
    return found


def main() -> None:
    """Print one row a search: median and 90th percentile of the regret in %, by size and budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--only", default="", help="part of a search's name")
    arguments = parser.parse_args()
    runs = arguments.runs
    columns = [(size, budget) for size in (2, 3, 5) for budget in BUDGETS]
    print("| search | " + " | ".join(f"{size} weights, {budget}" for size, budget in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, run in searches().items():
        if arguments.only not in name:
            continue
        cells = []
        for size, budget in columns:
            regrets = []
            for seed in range(runs):
                surface = Surface(size, seed)
                regrets.append(100.0 * surface.true(run(surface, budget, seed)))
            cells.append(f"{np.median(regrets):.1f} / {np.percentile(regrets, 90):.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
