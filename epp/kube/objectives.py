"""InferenceObjectives in, priorities out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.config.kubernetes import Kubernetes
    from epp.kube.objects import Objective


def priorities(objectives: Iterable[Objective], settings: Kubernetes) -> Mapping[str, int]:
    """Priority by the objective's name, of those that are for our pool; 0 where none is stated.

    A reference without a group means the pool of that name, whichever group we follow it in.
    """
    return {
        objective.metadata.name: objective.spec.priority or 0
        for objective in objectives
        if objective.spec.pool_ref.name == settings.pool_name
        and objective.spec.pool_ref.group in {"", settings.pool_group}
    }
