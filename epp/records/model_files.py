"""The reward model's file: from text to a checked `RewardModel` and back, and its old versions.

Owns the file's format: JSON, arrays as base64 of little-endian numbers, so that a model comes back bit for
bit. `epp learn` writes it, `epp serve` reads and watches it. Old versions lie beside the file
(`version_path`), for `epp records verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
    """The whole file; each key is described at `epp.policies.reward_model.RewardModel`.

    Attributes:
        format: of the file.
        version: of the model, a digest of its content.
        mean, std, low, high, scale, offset: float64.
    """

    format: int
    version: str
    features: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=256)]
    classes: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=256)]
    heads: tuple[_Name, ...]
    mean: bytes
    std: bytes
    low: bytes
    high: bytes
    scale: bytes
    offset: bytes
    layers: Annotated[list[LayerEntry], msgspec.Meta(min_length=1)]
    samples: PositiveInt
    seen: PositiveInt
    round: PositiveInt
    trained_at_s: NotNegative
    tail: NotNegative
    validation: dict[_Name, float] = {}
    congestion_ms: NotNegative = 0.0


def parse_reward_model(text: str | bytes, source: str) -> RewardModel:
    """Read a model from its file.

    Raises:
        ConfigError: empty, torn, of another format, a key unknown or missing, arrays that do not fit, a
            number that is not finite, content that is not what its version says.
    """
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "remove it to have no model")
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(source, "", f"is not JSON: {error}", "write it again with epp learn") from error
    kind = content.get("format") if isinstance(content, dict) else None
    if kind != FORMAT:
        raise ConfigError(source, "format", f"format {kind!r} is not known", f"this program reads {FORMAT}")
    parsed = convert(content, RewardModelFile, source)
    model = _model(parsed, source)
    if model.version != parsed.version:
        problem = f"the content is version {model.version}, not {parsed.version}"
        raise ConfigError(source, "version", problem, "the file is damaged: write it again with epp learn")
    return model


def _model(parsed: RewardModelFile, source: str) -> RewardModel:
    try:
        fields = msgspec.structs.asdict(parsed)
        del fields["format"], fields["version"]
        fields |= {name: np.frombuffer(fields[name], "<f8") for name in _ARRAYS}
        fields["layers"] = tuple(
            (
                np.frombuffer(layer.weights, "<f4").reshape(layer.inputs, layer.outputs),
                np.frombuffer(layer.bias, "<f4"),
            )
            for layer in parsed.layers
        )
        return RewardModel(**fields)
    except ValueError as error:
        key, _, problem = str(error).rpartition(": ")
        raise ConfigError(source, key, problem, "write it again with epp learn") from error


def dump_reward_model(model: RewardModel) -> bytes:
    """Write a model as the bytes of its file."""
    fields: dict[str, Any] = {
        name: getattr(model, name) for name in RewardModelFile.__struct_fields__ if name != "format"
    }
    fields |= {name: _bytes(fields[name], "<f8") for name in _ARRAYS}
    fields["layers"] = [
        LayerEntry(weights.shape[0], weights.shape[1], _bytes(weights, "<f4"), _bytes(bias, "<f4"))
        for weights, bias in model.layers
    ]
    entry = RewardModelFile(format=FORMAT, **fields)
    return msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n"


def version_path(model_file: Path, version: str) -> Path:
    """Name the file of a version of a model: ``reward.json`` as ``reward.VERSION.json`` beside it.

    Raises:
        ValueError: the version is not one, so that no record can name another path.
    """
    if len(version) != 16 or not set(version) <= set("0123456789abcdef"):
        raise ValueError(f"{version!r} is no version of a model")
    return model_file.with_name(f"{model_file.stem}.{version}{model_file.suffix}")


def _bytes(values: NDArray[np.generic], kind: str) -> bytes:
    return np.ascontiguousarray(values, kind).tobytes()


class ModelVersions:
    """Models in folders or files, each read once.

    Args:
        places: where to look, in this order: folders of versions, or files of one model whatever their names;
            those that do not exist have none.

    Attributes:
        used: file of each model that was found, by version.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self.used: dict[str, Path] = {}
        self._found: dict[str, RewardModel | None] = {}

    def get(self, version: str) -> RewardModel | None:
        """Find a model by version; None when none of the places has it whole."""
        if version not in self._found:
            self._found[version] = self._look(version)
        return self._found[version]

    def _look(self, version: str) -> RewardModel | None:
        for place in self._places:
            try:
                pattern = version_path(place / "*.json", version).name
            except ValueError:
                return None
            for path in [place] if place.is_file() else sorted(place.glob(pattern)):
                try:
                    model = parse_reward_model(path.read_bytes(), str(path))
                except (OSError, ConfigError):
                    continue
                if model.version == version:
                    self.used[version] = path
                    return model
        return None
