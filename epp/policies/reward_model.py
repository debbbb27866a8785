"""A reward model: what a request would feel at each endpoint, predicted by a small network.

Owns the features, the network's pass and the bounds of what it was trained on. The picker's policy and the
learner make inputs by the same function, from the same `RequestInfo` and `Snapshot`: a decision's snapshot
is its training row by construction. An endpoint's identity is never an input, so that a fleet that grows
needs no training. Knows no file, no clock and no way to train. Source [L], sections 4.1 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from epp.policies.parts import match_ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from epp.types import Flags, Floats, RequestInfo, Snapshot

    Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
    _Feature = Callable[[RequestInfo, Snapshot], Floats | float]

#: Every feature that a model may name, by name: a column of the fleet, or one number for all endpoints.
FEATURES: Mapping[str, _Feature] = {
    # Of the instance, by its own metrics and by what this picker has sent it.
    "engine_running": lambda _, snapshot: snapshot.engine_running,
    "engine_waiting": lambda _, snapshot: snapshot.engine_waiting,
    "running_requests": lambda _, snapshot: snapshot.running_requests,
    "waiting_requests": lambda _, snapshot: snapshot.running_requests - snapshot.decoding_requests,
    "pending_uncached_tokens": lambda _, snapshot: snapshot.pending_uncached_tokens,
    "decoding_tokens": lambda _, snapshot: snapshot.decoding_tokens,
    "kv_usage": lambda _, snapshot: snapshot.engine_kv_usage,
    # Of the request there, and of the request.
    "hit_ratio": match_ratios,
    "uncached_tokens": lambda _, snapshot: snapshot.uncached_tokens,
    "prompt_tokens": lambda request, _: float(request.prompt_tokens),
    # What the paper leaves out: users wait for the network too.
    "rtt_ms": lambda _, snapshot: snapshot.rtt_ms,
    "body_bytes": lambda request, _: float(request.body_bytes),
    "expected_output_tokens": lambda request, _: request.expected_output_tokens,
}
#: The paper's own, with live counts beside the engine's as its code has them.
PAPER_FEATURES = (
    "engine_running",
    "engine_waiting",
    "running_requests",
    "waiting_requests",
    "pending_uncached_tokens",
    "decoding_tokens",
    "kv_usage",
    "hit_ratio",
    "prompt_tokens",
)
#: The paper's; the product of length and miss, which its network has to find; distance and upload.
DEFAULT_FEATURES = (*PAPER_FEATURES, "uncached_tokens", "rtt_ms", "body_bytes")
#: Features whose values may be unknown and filled, with the column of the snapshot that says so.
FILLED_COLUMNS: Mapping[str, str] = {
    "engine_running": "engine_running",
    "engine_waiting": "engine_waiting",
    "kv_usage": "engine_kv_usage",
    "rtt_ms": "rtt_ms",
}

#: The feature that a price is paid for.
PRICED = "uncached_tokens"

#: What a model may predict, in the order in which its outputs stand.
HEADS = ("ttft_ms", "itl_ms")

#: How far beyond its quantiles an input still counts as known: a share of their distance, and of their size.
#: Without it a column that was constant in training (one RTT) would be foreign at its first flutter.
_MARGIN_OF_RANGE = 0.1
_MARGIN_OF_SIZE = 0.05
_ZERO = np.float32(0.0)


def inputs(
    request: RequestInfo, snapshot: Snapshot, features: Sequence[str], classes: Sequence[str]
) -> Floats:
    """Make a network's inputs before normalisation, ``[endpoints, features + classes]``.

    Args:
        request: the request.
        snapshot: the endpoints, as they were seen when the decision was made.
        features: names of `FEATURES`, in the model's order.
        classes: engine classes of the one-hot columns behind them; an endpoint of another class has zeros.

    Raises:
        KeyError: a feature that does not exist.
    """
    count = len(features)
    made = np.empty((count + len(classes), len(snapshot)))  # columns lie together: they are what is worked on
    for row, name in enumerate(features):
        made[row] = FEATURES[name](request, snapshot)
    if classes:
        made[count:] = _one_hot(tuple(classes), snapshot.engine_classes)
    return made.T


@lru_cache(maxsize=256)
def _one_hot(classes: tuple[str, ...], engine_classes: tuple[str, ...]) -> Floats:
    """Make columns ``[classes, endpoints]``; kept, because a pool's classes rarely change."""
    hot = np.array([[name == known for name in engine_classes] for known in classes], np.float64)
    hot.setflags(write=False)
    return hot


@dataclass(frozen=True, slots=True, eq=False)
class RewardModel:
    """A trained network and everything that it needs to be used; equal when the versions are.

    With d = features + classes and h = heads:

    Attributes:
        features: names of `FEATURES`, the first inputs.
        classes: engine classes of the one-hot inputs behind them; may be empty.
        mean: of each input in training, ``[d]``; 0 for one-hot inputs.
        std: its standard deviation, ``[d]``, positive; 1 for one-hot inputs and for constant ones.
        low: quantile `tail` of each input in training, ``[d]``.
        high: quantile 1 - `tail`, ``[d]``.
        layers: weights ``[in, out]`` and bias ``[out]`` of each layer, float32; ReLU after all but the last.
        heads: what the outputs are, names of `HEADS`; TTFT first.
        scale: milliseconds of one unit of each output, ``[h]``, positive.
        offset: milliseconds at output 0, ``[h]``.
        samples: rows that it was trained on.
        seen: rows that its learner had seen in all.
        round: number of the training, from 1.
        trained_at_s: Unix time of the training.
        tail: share of the training rows beyond each bound.
        validation: figures of the held-out rows, for people.
        congestion_ms: what an uncached token of a request takes from others, wherever it is computed; 0 for
            nothing.
    """

    features: tuple[str, ...]
    classes: tuple[str, ...]
    mean: Floats
    std: Floats
    low: Floats
    high: Floats
    layers: tuple[Layer, ...]
    heads: tuple[str, ...]
    scale: Floats
    offset: Floats
    samples: int
    seen: int
    round: int
    trained_at_s: float
    tail: float
    validation: Mapping[str, float] = field(default_factory=dict)
    congestion_ms: float = 0.0
    #: Digest of what the predictions and the fallbacks depend on; made here, never given.
    version: str = field(init=False)
    _least: Floats = field(init=False, repr=False)
    _most: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit, numbers that are not finite, names that do not exist.

        Raises:
            ValueError: naming the attribute.
        """
        _check(self)
        margin = _MARGIN_OF_RANGE * (self.high - self.low)
        margin += _MARGIN_OF_SIZE * np.maximum(np.abs(self.low), np.abs(self.high))
        set_once = object.__setattr__
        set_once(self, "_least", self.low - margin)
        set_once(self, "_most", self.high + margin)
        set_once(self, "version", _digest(self))

    def __eq__(self, other: object) -> bool:
        """Compare versions."""
        return isinstance(other, RewardModel) and other.version == self.version

    def __hash__(self) -> int:
        """Hash the version."""
        return hash(self.version)

    def inputs(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        """Make this model's inputs, ``[endpoints, d]``."""
        return inputs(request, snapshot, self.features, self.classes)

    def predict(self, x: Floats) -> Floats:
        """Predict milliseconds of each head, ``[rows, h]``, from inputs ``[rows, d]``."""
        return self.judge(x)[0]

    def out_of_distribution(self, x: Floats) -> Flags:
        """Mark which rows of inputs are unlike the training's: beyond a bound, or of a class not seen."""
        return self.judge(x)[1]

    def congestion(self, x: Floats) -> Floats | None:
        """Price what the request takes from others at each endpoint, ``[rows]`` ms; None for no price."""
        if not self.congestion_ms:
            return None
        taken: Floats = x[:, self.features.index(PRICED)] * self.congestion_ms
        return taken

    def judge(self, x: Floats) -> tuple[Floats, Flags]:
        """Predict, and mark which rows are out of distribution, in one pass."""
        known, count = self._moved_inside(x), len(self.features)
        strange: Flags = np.logical_or.reduce(known[:, :count] != x[:, :count], axis=1)
        if self.classes:
            strange |= np.add.reduce(x[:, count:], axis=1) == 0.0
        known -= self.mean
        known /= self.std
        values = known.astype(np.float32)
        last = len(self.layers) - 1
        for number, (weights, bias) in enumerate(self.layers):
            values = values.dot(weights)
            values += bias
            if number < last:
                np.maximum(values, _ZERO, out=values)
        heads = values.astype(np.float64)
        heads *= self.scale
        heads += self.offset
        return heads, strange

    def beyond(self, x: Floats) -> Flags:
        """Mark which features of inputs ``[rows, d]`` are beyond a bound of the training."""
        beyond: Flags = (self._moved_inside(x) != x)[:, : len(self.features)]
        return beyond

    def _moved_inside(self, x: Floats) -> Floats:
        known = np.maximum(x, self._least)  # beyond the bounds it would only extrapolate
        return np.minimum(known, self._most, out=known)


def _check(model: RewardModel) -> None:
    unknown = [name for name in model.features if name not in FEATURES]
    if unknown or not model.features:
        raise ValueError(f"features: {unknown or 'none'}; known are {', '.join(FEATURES)}")
    if model.heads not in (HEADS[:1], HEADS):
        raise ValueError(f"heads: must be {HEADS[0]}, or {' and '.join(HEADS)}, not {model.heads}")
    if not 0.0 <= model.congestion_ms < np.inf or (model.congestion_ms and PRICED not in model.features):
        raise ValueError(f"congestion_ms: must not be negative, and needs the feature {PRICED}")
    width, heads = len(model.features) + len(model.classes), len(model.heads)
    shapes = {"mean": width, "std": width, "low": width, "high": width, "scale": heads, "offset": heads}
    for name, size in shapes.items():
        _check_array(name, getattr(model, name), (size,))
    for number, (weights, bias) in enumerate(model.layers):
        out = heads if number == len(model.layers) - 1 else bias.size
        _check_array(f"layers[{number}].weights", weights, (width, out))
        _check_array(f"layers[{number}].bias", bias, (out,))
        width = out


def _check_array(name: str, value: NDArray[np.floating], shape: tuple[int, ...]) -> None:
    if value.shape != shape or not np.isfinite(value).all():
        raise ValueError(f"{name}: must be finite, of shape {list(shape)}, not {list(value.shape)}")


def _digest(model: RewardModel) -> str:
    state = xxhash.xxh3_128()
    names = (model.features, model.classes, model.heads, model.samples, model.seen, model.round)
    state.update(repr((*names, model.trained_at_s, model.tail)).encode())
    if model.congestion_ms:  # a model without a price has the version that it had before there were any
        state.update(repr(model.congestion_ms).encode())
    numbers = (model.mean, model.std, model.low, model.high, model.scale, model.offset)
    for array in numbers:
        state.update(np.ascontiguousarray(array, "<f8").tobytes())
    for weights, bias in model.layers:
        state.update(np.ascontiguousarray(weights, "<f4").tobytes())
        state.update(np.ascontiguousarray(bias, "<f4").tobytes())
    return state.hexdigest()[:16]
