"""`epp records verify`: run every recorded decision again and prove that it comes out the same.

The same policy code, on the snapshot that was recorded, with the weights and the seed that were recorded: the
choice, its fallbacks, the draw and every cost must be what they were. Numbers are compared bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.decide.record_files import read_records
from epp.decide.record_query import add_decision_conditions, add_folder, query_of
from epp.decide.record_schema import RecordError, decision_of
from epp.decide.rerun import rerun
from epp.errors import ConfigError, EppError
from epp.policies.registry import create

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from epp.decide.records import Decision
    from epp.policies.base import Policy

_TOLD = 20


@dataclass(slots=True)
class Verdict:
    """What came of it.

    Attributes:
        identical: decisions that came out the same.
        differences: one sentence for every other one.
    """

    identical: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        """Decisions run again."""
        return self.identical + len(self.differences)


def verify(records: Iterable[Mapping[str, Any]]) -> Verdict:
    """Run the decisions among the records again."""
    verdict = Verdict()
    policies: dict[tuple[str, str], Policy] = {}
    for record in records:
        if record["kind"] != "decision":
            continue
        try:
            decision = decision_of(record)
            made = (decision.policy, repr(sorted(decision.params.items())))
            if made not in policies:
                policies[made] = create(decision.policy, decision.params)
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


def compare(recorded: Decision, again: Decision, record: Mapping[str, Any]) -> str:
    """How the two differ, ``""`` when they do not."""
    names = recorded.fleet.endpoints
    found = []
    if again.chosen != recorded.chosen:
        found.append(f"chose {names[recorded.chosen]} then, {names[again.chosen]} now")
    found += [
        f"{name} was {getattr(recorded, name)}, is {getattr(again, name)}"
        for name in ("fallbacks", "tied", "held_back")
        if getattr(again, name) != getattr(recorded, name)
    ]
    columns = [("costs", recorded.ranking.costs, again.ranking.costs)]
    columns += [
        (f"terms.{name}", column, again.ranking.terms.get(name, np.empty(0)))
        for name, column in recorded.ranking.terms.items()
    ]
    columns.append(("probabilities", np.array(record["probabilities"]), again.probabilities()))
    found += [f"{name} differ" for name, then, now in columns if not np.array_equal(then, now)]
    return f"{recorded.id}: {'; '.join(found)}" if found else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_folder(parser)
    add_decision_conditions(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; 1 when anything differs.

    Raises:
        EppError: there was nothing to verify, which proves nothing.
    """
    query = query_of(arguments)
    wanted = (
        record
        for record in read_records(arguments.folder)
        if record["kind"] == "decision" and query.decision(record)
    )
    verdict = verify(wanted)
    if not verdict.decisions:
        raise EppError(f"no decisions in {arguments.folder}: nothing was verified")
    for line in verdict.differences[:_TOLD]:
        print(line)
    if len(verdict.differences) > _TOLD:
        print(f"... and {len(verdict.differences) - _TOLD} more")
    same = "all identical" if not verdict.differences else f"{len(verdict.differences)} differ"
    print(f"{verdict.decisions} decisions run again: {same}")
    return 1 if verdict.differences else 0
