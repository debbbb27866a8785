"""The capability file: what is known of each model's answers, from text to checked values and back.

Owns the file's format; `epp capability fit` writes it, `epp serve` reads and watches it.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from epp.config.section import ModelName, NotNegative, PositiveInt, Section, Share
from epp.config.strict import decode
from epp.errors import ConfigError, gather, raise_all
from epp.types import SHORTEST_BUCKET_TOKENS, SuccessCell, SuccessRates, length_bucket

VERSION = 1
#: More cells than any cluster has: models times languages times lengths times tasks.
MAX_CELLS = 100_000
#: Beyond it questions are right for all models or for none.
MAX_EASE_SPREAD = 10.0

_Language = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ChanceEntry(Section, frozen=True):
    """One model's chance of a right answer in one cell.

    Attributes:
        language: as `epp.apis.language` names it.
        bucket_tokens: length bucket, a power of two.
        success: chance of a right answer.
        low: lower end of its 95 % interval.
        high: upper end.
        task: kind of work, any when empty.
        rows: answers that it was fitted on in this cell.
    """

    language: _Language
    bucket_tokens: PositiveInt
    success: Share
    low: Share = 0.0
    high: Share = 1.0
    task: Annotated[str, msgspec.Meta(max_length=64)] = ""
    rows: Annotated[int, msgspec.Meta(ge=0)] = 0


class FitReport(Section, frozen=True):
    """How well a fit predicts answers that it has not seen; nothing is decided by it.

    Attributes:
        fit_rows: answers fitted on.
        test_rows: answers held out, of other questions.
        seed: of the split.
        log_loss: of the held-out answers, in nats.
        base_log_loss: the same for a constant chance per model: what the fit has to beat.
        brier: mean squared error of the chances.
        calibration_error: expected difference between chance and share of right answers, over ten bins.
    """

    fit_rows: Annotated[int, msgspec.Meta(ge=0)] = 0
    test_rows: Annotated[int, msgspec.Meta(ge=0)] = 0
    seed: int = 0
    log_loss: NotNegative | None = None
    base_log_loss: NotNegative | None = None
    brier: NotNegative | None = None
    calibration_error: NotNegative | None = None


class CapabilityFile(Section, frozen=True):
    """The whole file.

    Attributes:
        models: cells by what the engine calls the model.
        ease_spread: see `epp.types.SuccessRates`.
        version: format of the file.
        report: of the fit.
    """

    models: dict[ModelName, list[ChanceEntry]]
    ease_spread: Annotated[float, msgspec.Meta(ge=0, le=MAX_EASE_SPREAD)] = 0.0
    version: int = VERSION
    report: FitReport | None = None


def parse_capability(text: str | bytes, source: str) -> CapabilityFile:
    """A capability file to checked values.

    Raises:
        ConfigError: empty or torn, unknown key or version, a chance out of its interval, a cell listed twice.
    """
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "write 'models: {}' to know nothing")
    parsed = decode(text, CapabilityFile, source)
    if parsed.version != VERSION:
        raise ConfigError(
            source, "version", f"version {parsed.version} is not known", f"this program reads {VERSION}"
        )
    if sum(map(len, parsed.models.values())) > MAX_CELLS:
        raise ConfigError(source, "models", f"more than {MAX_CELLS} cells")
    errors: list[ConfigError] = []
    for model, entries in parsed.models.items():
        seen: set[SuccessCell] = set()
        for position, entry in enumerate(entries):
            with gather(errors):
                _check(entry, source, f"models.{model}[{position}]", seen)
    raise_all(errors)
    return parsed


def _check(entry: ChanceEntry, source: str, key: str, seen: set[SuccessCell]) -> None:
    if entry.bucket_tokens < SHORTEST_BUCKET_TOKENS or length_bucket(entry.bucket_tokens) != (
        entry.bucket_tokens
    ):
        fix = f"a power of two from {SHORTEST_BUCKET_TOKENS}"
        raise ConfigError(source, f"{key}.bucket_tokens", f"{entry.bucket_tokens} is no length bucket", fix)
    if not all(map(math.isfinite, (entry.success, entry.low, entry.high))) or not (
        entry.low <= entry.success <= entry.high
    ):
        raise ConfigError(source, f"{key}.success", f"{entry.success} is not within low and high")
    cell = SuccessCell(entry.language, entry.bucket_tokens, entry.task)
    if cell in seen:
        raise ConfigError(source, key, f"{entry.language}, {entry.bucket_tokens} is listed twice")
    seen.add(cell)


def read_chances(text: bytes | None, source: str) -> SuccessRates:
    """Read a capability file's chances; none of a file that does not exist.

    Raises:
        ConfigError: as `parse_capability`.
    """
    return SuccessRates({}) if text is None else chances_of(parse_capability(text, source))


def chances_of(parsed: CapabilityFile) -> SuccessRates:
    """Return what `epp.signals.capability.Capability.replace` takes."""
    by_model = {
        model: {
            SuccessCell(entry.language, entry.bucket_tokens, entry.task): float(entry.success)
            for entry in entries
        }
        for model, entries in parsed.models.items()
    }
    return SuccessRates(by_model, parsed.ease_spread)


def dump_capability(parsed: CapabilityFile) -> bytes:
    """The file's bytes."""
    return msgspec.yaml.encode(parsed, order="deterministic")
