"""Rules that give a request another model than its client names: llm-d's InferenceModelRewrite.

Owns precedence and the draw among weighted targets, as llm-d has them (apix/v1alpha2 and
pkg/epp/datastore/modelrewritestore.go at ebab6879): a rule that names the model goes before one for any, and
among those the first of the list. The draw is keyed, so that a client's session keeps its model.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Headers that name the engine's model where no rule does, the newer name first. Source [E].
REWRITE_HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")


class Rule(Struct, frozen=True):
    """One rule.

    Attributes:
        name: of the resource that it is from.
        models: client's names that it is for, empty for any and none.
        targets: each model to ask for with its weight; 0 of all stands for 1 of all. Empty: the name stays.
    """

    name: str
    models: tuple[str, ...]
    targets: tuple[tuple[str, int], ...]

    def target(self, key: str) -> str:
        """Draw a target by a key, ``""`` where there is none."""
        if not self.targets:
            return ""
        models, weights = zip(*self.targets, strict=True)
        bounds = list(accumulate(weights if any(weights) else [1] * len(models)))
        drawn: str = models[bisect_right(bounds, keyed_uniform(0, key, self.name) * bounds[-1])]
        return drawn


class ModelRules:
    """The rules in force.

    Args:
        rules: the older first.

    Attributes:
        by_model: the rule for each model that rules are for by name.
        names: every model that a rule names; empty when there is nothing to rewrite.
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.by_model: dict[str, Rule] = {}
        self._for_any: Rule | None = None
        self.names = set[str]()
        for rule in rules:
            self.names.update(rule.models, (model for model, _ in rule.targets))
            for model in rule.models:
                self.by_model.setdefault(model, rule)
            if not rule.models and self._for_any is None:
                self._for_any = rule

    def find(self, model: str) -> Rule | None:
        """Find the rule for what a client calls a model, ``""`` where it names none."""
        return self.by_model.get(model, self._for_any)
