"""From samples to a reward model: targets, normalisation, bounds, the training; and which samples are kept.

Owns the recipe; every call begins with fresh weights and ends with a whole model. Pure: the same samples and
seed give the same model, bit for bit, on one machine.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.reward_model import HEADS, PRICED, RewardModel
from epp_lab.reward_model.network import Adam, Mlp, residuals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp_lab.reward_model.samples import Sample
    from epp_lab.reward_model.settings import LearnerSettings, Network

    Floats = NDArray[np.float64]

#: What a request's own prefill and what is in front of it are made of; where not named, its tokens alone.
_WORK = (PRICED, "pending_uncached_tokens")
#: Numbers that spread by less than this share of their size do so by rounding alone.
_ALIKE = 1e-6
#: ITL is predicted only where this share of the rows has one.
_ENOUGH_ITL = 0.05
#: A request that failed unanswered counts as at least as slow as this quantile of the answered ones.
_FAILED_QUANTILE = 0.99
#: Chosen rows are taken out of the columns after so many choices: a copy now and then for less to multiply.
_SHRINK_EVERY = 256


def stack(samples: Sequence[Sample], classes: Sequence[str]) -> Floats:
    """Inputs of samples ``[rows, features + classes]``, as `epp.policies.reward_model.inputs` orders them."""
    rows = np.stack([sample.row for sample in samples])
    return with_classes(rows, [sample.engine_class for sample in samples], classes)


def with_classes(rows: Floats, engine_classes: Sequence[str], classes: Sequence[str]) -> Floats:
    """Return rows of features with their one-hot columns behind them."""
    if not classes:
        return rows
    hot = np.array(engine_classes)[:, None] == np.array(classes)[None, :]
    return np.concatenate([rows, hot], axis=1)


def targets_of(samples: Sequence[Sample], heads: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what is to be predicted of each row, and where a value is only a lower bound.

    Both are ``[rows, heads]``: milliseconds, NaN where not known.
    """
    ttft_ms = np.array([sample.ttft_ms for sample in samples])
    waited_ms = np.array([sample.waited_ms for sample in samples])
    failed = np.array([sample.failed for sample in samples], np.bool_)
    answered = ~np.isnan(ttft_ms)
    slow_ms = float(np.quantile(ttft_ms[answered], _FAILED_QUANTILE)) if answered.any() else 0.0
    waited_ms = np.where(failed, np.maximum(waited_ms, slow_ms), waited_ms)
    columns = [np.where(answered, ttft_ms, waited_ms), np.array([sample.itl_ms for sample in samples])]
    values = np.stack(columns[: len(heads)], axis=1)
    bounds = np.zeros(values.shape, np.bool_)
    bounds[:, 0] = ~answered
    return values, bounds


def heads_of(samples: Sequence[Sample], settings: LearnerSettings) -> tuple[str, ...]:
    """What these samples can teach: both heads where felt latency is asked for and enough ITLs are known."""
    if settings.reward == "felt":
        known = sum(not np.isnan(sample.itl_ms) for sample in samples)
        if known >= _ENOUGH_ITL * len(samples):
            return HEADS
    return HEADS[:1]


def classes_of(samples: Sequence[Sample], least: int) -> tuple[str, ...]:
    """Return engine classes with enough rows; none where nobody names classes."""
    counts = Counter(sample.engine_class for sample in samples)
    if set(counts) == {""}:
        return ()
    return tuple(sorted(name for name, count in counts.items() if count >= least))


def fit(
    samples: Sequence[Sample],
    settings: LearnerSettings,
    seed: int,
    *,
    beside: Sequence[Floats] = (),
) -> RewardModel:
    """Train a model, as the first of a learner that has seen these samples alone.

    Args:
        samples: at least one that was answered.
        settings: the recipe.
        seed: of first weights, order and dropout.
        beside: inputs of all candidates of decisions, ``[candidates, features]`` each: they widen the bounds.

    Raises:
        ValueError: no sample was answered, or the training came to numbers that are not finite.
    """
    network = settings.network
    if not any(sample.answered for sample in samples):
        raise ValueError("no sample with a first token: nothing to predict")
    classes = classes_of(samples, network.min_class_rows)
    heads = heads_of(samples, settings)
    x = stack(samples, classes)
    targets, lower = targets_of(samples, heads)
    mean, std = _normalisation(x, len(network.features))
    known = np.where(lower, np.nan, targets)
    offset, scale = np.nanmean(known, axis=0), np.nanstd(known, axis=0)
    scale[scale <= 0.0] = 1.0
    low, high = bounds_of(x, beside, network.tail)
    net = _train(
        ((x - mean) / std).astype(np.float32),
        ((targets - offset) / scale).astype(np.float32),
        lower,
        network,
        seed,
    )
    return RewardModel(
        features=network.features,
        classes=classes,
        mean=mean,
        std=std,
        low=low,
        high=high,
        layers=tuple((weights.copy(), bias.copy()) for weights, bias in net.layers),
        heads=heads,
        scale=scale,
        offset=offset,
        samples=len(samples),
        seen=len(samples),
        round=1,
        trained_at_s=0.0,
        tail=network.tail,
        congestion_ms=price_of(samples, classes, settings),
    )


def price_of(samples: Sequence[Sample], classes: Sequence[str], settings: LearnerSettings) -> float:
    """What an uncached token takes from others, ms: `congestion_price` times what it costs its own request.

    The latter is the slope of the TTFT over the tokens to be computed, a request's own and those in front of
    it, by least squares over the answered rows of a class; over classes the harmonic mean by their rows, the
    time that a token takes a pool which computes in all of them at once. It is one price for all: queues of a
    pool level out, and what a token takes from all is the same wherever it is computed.

    Args:
        samples: rows.
        classes: of the model.
        settings: the price, and the features.
    """
    features = settings.network.features
    if not settings.congestion_price or PRICED not in features:
        return 0.0
    columns = [features.index(name) for name in _WORK if name in features]
    answered = [sample for sample in samples if sample.answered]
    tokens = np.array([sample.row[columns].sum() for sample in answered])
    ttft_ms = np.array([sample.ttft_ms for sample in answered])
    of = np.array([sample.engine_class for sample in answered])
    slopes, rows = [], []
    for name in classes or sorted(set(of.tolist())):
        slope = _slope(tokens[of == name], ttft_ms[of == name])
        if slope > 0.0:
            slopes.append(slope)
            rows.append(int((of == name).sum()))
    if not slopes:
        return 0.0
    return (
        settings.congestion_price * sum(rows) / sum(n / slope for n, slope in zip(rows, slopes, strict=True))
    )


def _slope(x: Floats, y: Floats) -> float:
    spread = float(x.var()) if len(x) else 0.0
    if spread <= (_ALIKE * float(np.abs(x).max(initial=0.0))) ** 2:
        return 0.0
    return float(((x - x.mean()) * (y - y.mean())).mean()) / spread


def _normalisation(x: Floats, features: int) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each feature; one-hot inputs stay as they are."""
    mean, std = np.zeros(x.shape[1]), np.ones(x.shape[1])
    mean[:features], std[:features] = x[:, :features].mean(axis=0), x[:, :features].std(axis=0)
    # What did not vary was not learned from: any scale will do, and the bounds tell when it varies.
    std[std <= 1e-9 * np.maximum(np.abs(mean), 1.0)] = 1.0
    return mean, std


def bounds_of(x: Floats, beside: Sequence[Floats], tail: float) -> tuple[Floats, Floats]:
    """Range of each input that a model may be asked about: what was trained on, and what stood beside it.

    The paper's range is of the snapshots in its training buffer (source [L], section 4.3.1), and a snapshot
    shows all instances, not the one that was chosen: a full endpoint is seen with every decision, and hardly
    ever trained on, because nobody chooses it. Quantiles instead of its extremes are ours, so that one wild
    row does not open the range for good. The wider of both ranges counts, so that nothing that was trained
    on becomes strange by what stood beside it.

    Args:
        x: inputs that are trained on, ``[rows, features + classes]``.
        beside: inputs of candidates, ``[candidates, features]`` each.
        tail: share of the rows beyond each bound.
    """
    low, high = np.quantile(x, (tail, 1.0 - tail), axis=0)
    if len(beside):
        seen = np.concatenate(beside)
        least, most = np.quantile(seen, (tail, 1.0 - tail), axis=0)
        count = seen.shape[1]
        np.minimum(low[:count], least, out=low[:count])
        np.maximum(high[:count], most, out=high[:count])
    return low, high


def _train(
    x: NDArray[np.float32],
    targets: NDArray[np.float32],
    bounds: NDArray[np.bool_],
    network: Network,
    seed: int,
) -> Mlp:
    if not network.hidden:
        return _solved(x, targets, bounds)
    random = np.random.default_rng(seed)
    net = Mlp((x.shape[1], *network.hidden, targets.shape[1]), random)
    gradient = np.zeros_like(net.flat)
    into, adam = net.views(gradient), Adam(net.flat.size)
    for _ in range(network.epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x), network.batch):
            rows = order[start : start + network.batch]
            net.gradient(x[rows], targets[rows], bounds[rows], into, dropout=network.dropout, random=random)
            adam.step(net.flat, gradient, network.learning_rate)
    return net


def _solved(x: NDArray[np.float32], targets: NDArray[np.float32], bounds: NDArray[np.bool_]) -> Mlp:
    """Return the linear model of least squares over what is known; bounds have no part in it."""
    net = Mlp((x.shape[1], targets.shape[1]))
    weights, bias = net.layers[0]
    padded = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1).astype(np.float64)
    for head in range(targets.shape[1]):
        known = ~(np.isnan(targets[:, head]) | bounds[:, head])
        solution = np.linalg.lstsq(padded[known], targets[known, head].astype(np.float64), rcond=1e-6)[0]
        weights[:, head], bias[head] = solution[:-1], solution[-1]
    return net


def most_different(model: RewardModel, samples: Sequence[Sample], count: int) -> NDArray[np.intp]:
    """Return indices of samples whose gradients by the last layer's weights point in the most different ways.

    Source [L], section 4.3.2, after Tiwari et al., "GCR: Gradient coreset based replay buffer selection for
    continual learning" (CVPR 2022).
    """
    x = stack(samples, model.classes)
    targets, lower = targets_of(samples, model.heads)
    predicted = ((model.predict(x) - model.offset) / model.scale).astype(np.float32)
    wanted = ((targets - model.offset) / model.scale).astype(np.float32)
    # With its sign, which is part of the direction.
    residual = residuals(predicted, wanted, lower)[:, :1]
    hidden = ((x - model.mean) / model.std).astype(np.float32)
    for weights, bias in model.layers[:-1]:
        hidden = np.maximum(hidden @ weights + bias, np.float32(0.0))
    return farthest_first(hidden * residual, count)


def farthest_first(vectors: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices of ``count`` rows, greedily k-centre under cosine distance, in the order of their choice.

    Begins with the longest row; then, each time, the row whose nearest chosen one is farthest. Rows without
    a direction (no error) come last, in their order. O(rows x count x width).

    Args:
        vectors: ``[rows, width]``.
        count: how many, fewer than there are rows.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    names, silent = np.flatnonzero(norms > 0.0), np.flatnonzero(norms <= 0.0)
    units = vectors[names] / norms[names, None]
    nearest = np.full(len(units), -2.0, np.float32)  # cosine to the nearest chosen row; lower is farther
    chosen: list[int] = []
    wanted = min(count, len(units))
    at = int(np.argmax(norms[names])) if wanted else 0
    while len(chosen) < wanted:
        chosen.append(int(names[at]))
        np.maximum(nearest, units @ units[at], out=nearest)
        nearest[at] = np.inf
        if len(chosen) % _SHRINK_EVERY == 0:
            left = np.isfinite(nearest)
            units, names, nearest = units[left], names[left], nearest[left]
        if len(units):
            at = int(np.argmin(nearest))
    return np.array([*chosen, *silent[: count - wanted]], np.intp)
