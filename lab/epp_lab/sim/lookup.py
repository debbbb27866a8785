"""Answers to key-value lookups: right or wrong, as often as a model is.

Owns the form of such prompts, as SCBench and "Lost in the Middle" have it: a JSON object of UUIDs, and a
question that names one of its keys. Decoding is greedy: a model's answer to a question is always the same.
A wrong answer is another value of the object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epp.apis.language import language_of
from epp.config.capability import chances_of, parse_capability
from epp.errors import ConfigError
from epp.keyed_uniform import keyed_uniform
from epp.types import SuccessCell, length_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp_lab.sim.api import SimRequest

_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PAIR: Final = re.compile(rb'"(' + _UUID + rb')": "(' + _UUID + rb')"')
_NAMED: Final = re.compile(_UUID)
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Lookup:
    """How one model looks up keys.

    Attributes:
        model: its name.
        chances: how often it is right, by cell; never, in others.
    """

    model: str
    chances: Mapping[SuccessCell, float]

    def words(self, asked: SimRequest) -> list[str]:
        """Return the answer in tokens, ``[]`` for a prompt that is no lookup."""
        pairs = dict(_PAIR.findall(asked.text))
        named = _NAMED.findall(asked.text)
        if not pairs or named[-1] not in pairs:
            return []
        key: bytes = named[-1]
        cell = SuccessCell(language_of(asked.text), length_bucket(asked.prompt_tokens))
        value = pairs.pop(key)
        name = f"{self.model} {key.decode()}"
        if pairs and keyed_uniform(0, name, "right") >= self.chances.get(cell, 0.0):
            others = list(pairs.values())
            value = others[int(keyed_uniform(0, name, "which") * len(others))]
        text = value.decode()
        return [text[at : at + _CHARS_PER_TOKEN] for at in range(0, len(text), _CHARS_PER_TOKEN)]


def lookups(path: Path) -> dict[str, Lookup]:
    """Return a capability file, taken for the truth, by model.

    Raises:
        ConfigError: it cannot be read, or is not one.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), "", str(error)) from error
    return {
        model: Lookup(model, chances)
        for model, chances in chances_of(parse_capability(text, str(path))).by_model.items()
    }
