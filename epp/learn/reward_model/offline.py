"""`epp learn --offline records/`: rounds over what is on file, in the order of time, as a learner would have.

Owns the walk and its words. The gate judges each round as it does live; the last model that passed is written
where it is asked for.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from epp.config.reward_model import dump_reward_model
from epp.errors import EppError
from epp.learn.reward_model.loop import round_facts
from epp.learn.reward_model.rounds import Learner
from epp.learn.reward_model.samples import logged, pending_of
from epp.learn.reward_model.status import round_lines
from epp.learn.sidecar.files import Files
from epp.learn.tuner.samples import sample_of
from epp.records.check import whole_records
from epp.records.schema import RecordError, decision_of, join

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp.learn.reward_model.rounds import Round
    from epp.learn.reward_model.settings import LearnerSettings
    from epp.records.schema import Joined


def run_offline(
    folder: Path, settings: LearnerSettings, *, seed: int, out: Path | None, as_json: bool
) -> int:
    """Train on records; 0 when a model passed.

    Raises:
        EppError: there are no records, too few of them, or the model cannot be written.
    """
    requests = sorted(join(whole_records(folder)), key=lambda request: float(request.decision["at"]))
    learner = Learner(settings, seed)
    held: list[Round] = []
    for request in requests:
        if _taught(learner, request) and learner.due():
            learner.train(_at_wall_s(request))
            assert learner.last is not None  # noqa: S101 - a round was just held
            held.append(learner.last)
            if not as_json:
                print("\n".join(round_lines(round_facts(learner.last))))
    if not held:
        raise EppError(
            f"{folder}: {learner.memory.seen} usable requests of {settings.data.first} for a first round "
            f"(data.first of --settings)"
        )
    if as_json:
        json.dump({"rounds": [round_facts(each) for each in held]}, sys.stdout, indent=1)
        print()
    model = learner.incumbent
    if model is None:
        print("epp: no model passed the gate", file=sys.stderr)
        return 1
    if out is not None:
        try:
            Files().replace(out, dump_reward_model(model))
        except OSError as error:
            raise EppError(f"{out}: {error}") from error
    if not as_json:
        print(f"model {model.version}" + (f" written to {out}" if out else ": give --model FILE to keep it"))
    return 0


def _taught(learner: Learner, request: Joined) -> bool:
    if request.outcome is None:  # still running when the records end: how long it took is not known
        return False
    try:
        pending = pending_of(decision_of(request.decision), learner.settings.network.features)
        ended = sample_of(request.decision, request.outcome)
        entry = None if pending is None or ended is None else logged(pending, ended)
    except (RecordError, KeyError, TypeError, ValueError, IndexError):
        return False
    if entry is None:
        return False
    learner.add(entry)
    return True


def _at_wall_s(request: Joined) -> float:
    outcome: Mapping[str, Any] = request.outcome or {}
    return float(outcome.get("at", time.time()))
