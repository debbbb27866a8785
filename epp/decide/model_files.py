"""The reward model's file: from text to a checked `RewardModel` and back, and its old versions.

Owns the file's format: JSON, arrays as base64 of little-endian numbers, so that a model comes back bit for
bit. `epp learn` writes it, `epp serve` reads and watches it. Old versions lie beside the file
(`version_path`), for `epp records verify`.
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
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = 1
#: A network of the paper's size has 4 layers and 36k weights; nothing near these is meant to run per request.
MAX_LAYERS = 16
MAX_WEIGHTS = 2_000_000

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
    """The whole file; what each key means is told at `epp.policies.reward_model.RewardModel`.

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
        told = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(source, "", f"is not JSON: {error}", "write it again with epp learn") from error
    kind = told.get("format") if isinstance(told, dict) else None
    if kind != FORMAT:
        raise ConfigError(source, "format", f"format {kind!r} is not known", f"this program reads {FORMAT}")
    parsed = convert(told, RewardModelFile, source)
    model = _model(parsed, source)
    if model.version != parsed.version:
        problem = f"the content is version {model.version}, not {parsed.version}"
        raise ConfigError(source, "version", problem, "the file is damaged: write it again with epp learn")
    return model


def _model(parsed: RewardModelFile, source: str) -> RewardModel:
    if sum(layer.inputs * layer.outputs for layer in parsed.layers) > MAX_WEIGHTS:
        raise ConfigError(source, "layers", f"more than {MAX_WEIGHTS} weights", "train a smaller network")
    width, heads = len(parsed.features) + len(parsed.classes), len(parsed.heads)

    def column(key: str, size: int) -> NDArray[np.float64]:
        return _array(getattr(parsed, key), source, key, "<f8", (size,)).astype(np.float64)

    def matrix(number: int, key: str, *shape: int) -> NDArray[np.float32]:
        text = getattr(parsed.layers[number], key)
        return _array(text, source, f"layers[{number}].{key}", "<f4", shape).astype(np.float32)

    try:
        return RewardModel(
            features=tuple(parsed.features),
            classes=tuple(parsed.classes),
            heads=tuple(parsed.heads),
            mean=column("mean", width),
            std=column("std", width),
            low=column("low", width),
            high=column("high", width),
            scale=column("scale", heads),
            offset=column("offset", heads),
            layers=tuple(
                (
                    matrix(number, "weights", layer.inputs, layer.outputs),
                    matrix(number, "bias", layer.outputs),
                )
                for number, layer in enumerate(parsed.layers)
            ),
            samples=parsed.samples,
            seen=parsed.seen,
            round=parsed.round,
            trained_at_s=float(parsed.trained_at_s),
            tail=float(parsed.tail),
            validation=parsed.validation,
            congestion_ms=float(parsed.congestion_ms),
        )
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise ConfigError(source, key, problem, "write it again with epp learn") from error


def _array(content: bytes, source: str, key: str, kind: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    size = np.dtype(kind).itemsize * int(np.prod(shape))
    if len(content) != size:
        problem = f"holds {len(content)} bytes, not the {size} of shape {list(shape)}"
        raise ConfigError(source, key, problem, "write it again with epp learn")
    return np.frombuffer(content, kind).reshape(shape)


def dump_reward_model(model: RewardModel) -> bytes:
    """The file's bytes."""
    entry = RewardModelFile(
        format=FORMAT,
        version=model.version,
        features=list(model.features),
        classes=list(model.classes),
        heads=list(model.heads),
        mean=_bytes(model.mean, "<f8"),
        std=_bytes(model.std, "<f8"),
        low=_bytes(model.low, "<f8"),
        high=_bytes(model.high, "<f8"),
        scale=_bytes(model.scale, "<f8"),
        offset=_bytes(model.offset, "<f8"),
        layers=[
            LayerEntry(
                inputs=weights.shape[0],
                outputs=weights.shape[1],
                weights=_bytes(weights, "<f4"),
                bias=_bytes(bias, "<f4"),
            )
            for weights, bias in model.layers
        ],
        samples=model.samples,
        seen=model.seen,
        round=model.round,
        trained_at_s=model.trained_at_s,
        tail=model.tail,
        validation=dict(model.validation),
        congestion_ms=model.congestion_ms,
    )
    return msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n"


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


class ModelVersions:
    """Finds models in folders; each is read once.

    Args:
        folders: where to look, in this order; those that do not exist have none.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._found: dict[str, RewardModel | None] = {}

    def get(self, version: str) -> RewardModel | None:
        """The model of that version, None when none of the folders has it whole."""
        if version not in self._found:
            self._found[version] = self._look(version)
        return self._found[version]

    def _look(self, version: str) -> RewardModel | None:
        for folder in self._folders:
            try:
                pattern = version_path(folder / "*.json", version).name
            except ValueError:
                return None
            for path in sorted(folder.glob(pattern)):
                try:
                    model = parse_reward_model(path.read_bytes(), str(path))
                except (OSError, ConfigError):
                    continue
                if model.version == version:
                    return model
        return None
