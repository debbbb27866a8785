"""Verify records: every recorded decision is run again and must come out the same.

The same policy code, on the snapshot that was recorded, with the weights and the seed that were recorded: the
choice, its fallbacks, the draw and every cost must be what they were. Numbers are compared bit for bit; those
of a learned model are not, because a product of matrices differs in its last bits from processor to
processor. A decision whose model is no longer kept proves nothing either way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.errors import ConfigError
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp.records.model_files import ModelVersions
from epp.records.schema import RecordError, decision_of
from epp.schedule.decision import rerun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from epp.policies.base import Policy
    from epp.schedule.decision import Decision

_NO_MODELS = ModelVersions(())


@dataclass(slots=True)
class Verification:
    """What came of it.

    Attributes:
        identical: decisions that came out the same.
        differences: one sentence for every other one.
        models_gone: decisions that cannot be run again, by the version of the model that is gone.
    """

    identical: int = 0
    differences: list[str] = field(default_factory=list)
    models_gone: dict[str, int] = field(default_factory=dict)

    @property
    def decisions(self) -> int:
        """Decisions run again."""
        return self.identical + len(self.differences)


def verify(records: Iterable[Mapping[str, Any]], models: ModelVersions = _NO_MODELS) -> Verification:
    """Run the decisions among the records again, with the models that they name."""
    verdict = Verification()
    policies: dict[tuple[str, str], Policy] = {}
    for record in records:
        if record["kind"] != "decision":
            continue
        try:
            decision = decision_of(record)
            params, gone = with_model(decision, models)
            if gone:
                verdict.models_gone[gone] = verdict.models_gone.get(gone, 0) + 1
                continue
            made = (decision.policy, repr(sorted(decision.params.items())))
            if made not in policies:
                policies[made] = create(decision.policy, params)
            problem = compare(decision, rerun(decision, policies[made]), record)
        except (RecordError, ConfigError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # a policy that fails on a record is what we look for
            problem = f"{record.get('id')}: cannot be run again: {error!r}"
        if problem:
            verdict.differences.append(problem)
        else:
            verdict.identical += 1
    return verdict


def with_model(decision: Decision, models: ModelVersions) -> tuple[Mapping[str, object], str]:
    """The policy's parameters with the model that they name, and the version of one that is gone."""
    version = _model_of(decision)
    if not version:
        return decision.params, ""
    model = models.get(version)
    return {**decision.params, "model": model}, "" if model is not None else version


def _model_of(decision: Decision) -> str:
    named = decision.params.get("model") if decision.policy == Lodestar.name else None
    return named if isinstance(named, str) else ""


def compare(recorded: Decision, again: Decision, record: Mapping[str, Any]) -> str:
    """How the two differ, ``""`` when they do not."""
    names = recorded.snapshot.endpoints
    found = []
    if again.chosen != recorded.chosen:
        found.append(f"chose {names[recorded.chosen]} then, {names[again.chosen]} now")
    found += [
        f"{name} was {getattr(recorded, name)}, is {getattr(again, name)}"
        for name in ("fallbacks", "tied", "slow_start_excluded")
        if getattr(again, name) != getattr(recorded, name)
    ]
    if again.legs != recorded.legs:
        found.append(f"parts were {_parts(recorded)}, are {_parts(again)}")
    columns = [("costs", recorded.ranking.costs, again.ranking.costs)]
    columns += [
        (f"terms.{name}", column, again.ranking.terms.get(name, np.empty(0)))
        for name, column in recorded.ranking.terms.items()
    ]
    columns.append(("probabilities", np.array(record["probabilities"]), again.probabilities()))
    same = _nearly_equal if _model_of(recorded) else np.array_equal
    found += [f"{name} differ" for name, then, now in columns if not same(then, now)]
    return f"{recorded.id}: {'; '.join(found)}" if found else ""


def _parts(decision: Decision) -> str:
    return ", ".join(f"{leg.role} {decision.address(leg)}" for leg in decision.legs)


def _nearly_equal(then: NDArray[np.float64], now: NDArray[np.float64]) -> bool:
    return then.shape == now.shape and np.allclose(then, now, rtol=1e-4, atol=1e-3)
