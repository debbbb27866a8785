"""The reward model's file: from text to a checked `RewardModel` and back.

Owns the file's format: JSON, arrays as base64 of little-endian numbers, so that a model comes back bit for
bit. `epp learn` writes it, `epp serve` reads and watches it. Old versions lie beside the file
(`version_path`), for `epp records verify`. Never reads a disk; callers bring the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from epp.config.section import NotNegative, PositiveInt, Section
from epp.config.strict import convert
from epp.errors import ConfigError
from epp.policies.reward_model import RewardModel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = 1
#: A network of the paper's size has 4 layers and 36k weights; nothing near these is meant to run per request.
MAX_LAYERS = 16
MAX_WEIGHTS = 2_000_000

_AGAIN = "write it again with epp learn"
_ARRAYS = ("mean", "std", "low", "high", "scale", "offset")

_Name = Annotated[str, msgspec.Meta(max_length=256)]


class LayerEntry(Section, frozen=True):
    """One layer.

    Attributes:
        inputs: numbers that go in.
        outputs: numbers that come out.
        weights: ``[inputs, outputs]`` row by row, float32.
        bias: ``[outputs]``, float32.
    """

    inputs: PositiveInt
    outputs: PositiveInt
    weights: bytes
    bias: bytes


class RewardModelFile(Section, frozen=True):
    """The whole file; `epp.policies.reward_model.RewardModel` says what each key means.

    Attributes:
        format: of the file.
        version: of the model, a digest of its content.
        mean, std, low, high, scale, offset: float64.
    """

    format: int
    version: str
    features: Annotated[list[_Name], msgspec.Meta(max_length=256)]
    classes: Annotated[list[_Name], msgspec.Meta(max_length=256)]
    heads: list[_Name]
    mean: bytes
    std: bytes
    low: bytes
    high: bytes
    scale: bytes
    offset: bytes
    layers: Annotated[list[LayerEntry], msgspec.Meta(min_length=1, max_length=MAX_LAYERS)]
    samples: PositiveInt
    seen: PositiveInt
    round: PositiveInt
    trained_at_s: NotNegative
    tail: NotNegative
    validation: dict[_Name, float] = {}
    congestion_ms: NotNegative = 0.0


def parse_reward_model(text: str | bytes, source: str) -> RewardModel:
    """A model's file to the model.

    Raises:
        ConfigError: empty, torn, of another format, a key unknown or missing, arrays that do not fit, a
            number that is not finite, content that is not what its version says.
    """
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "remove it to have no model")
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(source, "", f"is not JSON: {error}", _AGAIN) from error
    kind = content.get("format") if isinstance(content, dict) else None
    if kind != FORMAT:
        raise ConfigError(source, "format", f"format {kind!r} is not known", f"this program reads {FORMAT}")
    parsed = convert(content, RewardModelFile, source)
    model = _model(parsed, source)
    if model.version != parsed.version:
        problem = f"the content is version {model.version}, not {parsed.version}"
        raise ConfigError(source, "version", problem, f"the file is damaged: {_AGAIN}")
    return model


def _model(parsed: RewardModelFile, source: str) -> RewardModel:
    if sum(layer.inputs * layer.outputs for layer in parsed.layers) > MAX_WEIGHTS:
        raise ConfigError(source, "layers", f"more than {MAX_WEIGHTS} weights", "train a smaller network")
    fields = {name: getattr(parsed, name) for name in parsed.__struct_fields__[2:]}
    for name in ("features", "classes", "heads"):
        fields[name] = tuple(fields[name])
    width, heads = len(parsed.features) + len(parsed.classes), len(parsed.heads)
    for name in _ARRAYS:
        size = heads if name in ("scale", "offset") else width
        fields[name] = _array(fields[name], source, name, "<f8", (size,)).astype(np.float64)
    layers = []
    for number, layer in enumerate(parsed.layers):
        key, shape = f"layers[{number}]", (layer.inputs, layer.outputs)
        weights = _array(layer.weights, source, f"{key}.weights", "<f4", shape).astype(np.float32)
        bias = _array(layer.bias, source, f"{key}.bias", "<f4", shape[1:]).astype(np.float32)
        layers.append((weights, bias))
    fields["layers"] = tuple(layers)
    try:
        return RewardModel(**fields)
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise ConfigError(source, key, problem, _AGAIN) from error


def _array(content: bytes, source: str, key: str, kind: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    size = np.dtype(kind).itemsize * int(np.prod(shape))
    if len(content) != size:
        problem = f"holds {len(content)} bytes, not the {size} of shape {list(shape)}"
        raise ConfigError(source, key, problem, _AGAIN)
    return np.frombuffer(content, kind).reshape(shape)


def dump_reward_model(model: RewardModel) -> bytes:
    """The file's bytes."""
    content = {"format": FORMAT} | {
        name: getattr(model, name) for name in RewardModelFile.__struct_fields__[1:]
    }
    content |= {name: _bytes(content[name], "<f8") for name in _ARRAYS}
    content["validation"] = dict(model.validation)
    content["layers"] = [
        LayerEntry(
            inputs=weights.shape[0],
            outputs=weights.shape[1],
            weights=_bytes(weights, "<f4"),
            bias=_bytes(bias, "<f4"),
        )
        for weights, bias in model.layers
    ]
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def version_path(model_file: Path, version: str) -> Path:
    """Where a version of a model is kept: beside the file, ``reward.json`` as ``reward.VERSION.json``.

    Raises:
        ValueError: the version is not one, so that no record can name another path.
    """
    if len(version) != 16 or not set(version) <= set("0123456789abcdef"):
        raise ValueError(f"{version!r} is no version of a model")
    return model_file.with_name(f"{model_file.stem}.{version}{model_file.suffix}")


def _bytes(values: NDArray[np.generic], kind: str) -> bytes:
    return np.ascontiguousarray(values, kind).tobytes()
