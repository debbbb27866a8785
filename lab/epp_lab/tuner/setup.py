"""What the tuner works on: a policy's weights and their files, and its own settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from epp.ops.given import WeightFiles, read_weight_files
from epp_lab.sidecar.setup import read_settings
from epp_lab.tuner.settings import TunerKeys, tuner_settings
from epp_lab.tuner.state import Rules

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setup(WeightFiles):
    """Everything that is configured.

    Attributes:
        rules: what the tuner goes by.
    """

    rules: Rules


def read_setup(arguments: argparse.Namespace, *, records: Path | None = None, looking: bool = False) -> Setup:
    """Return the setup of a command; see `read_weight_files`.

    Raises:
        ConfigError: something is missing or wrong, or the policy has no weights.
    """
    settings = tuner_settings(read_settings(arguments, TunerKeys()))
    files = read_weight_files(arguments, records=records, looking=looking)
    rules = Rules(settings, files.tuned_bounds(), dict(files.book.current.values))
    return Setup(**{field.name: getattr(files, field.name) for field in fields(files)}, rules=rules)
