"""What the tuner's file carries: the incumbent's weights and, during a trial, a second arm and its schedule.

Owns the file's format and the one rule that says which arm a request belongs to; tuner and pickers both ask
here, so that they cannot differ. Knows nothing of evidence. Pure: text and wall times come in.

Rules
- A trial ends by itself: outside ``[valid_from_wall_s, valid_until_wall_s)`` the incumbent serves everything.
  A living tuner moves the end on; a dead one costs nothing but freshness.
- A split is drawn by session, never per request; a session that is in a small share stays in a larger one.
- Requests that belong to no arm (no session key, no trial) are served by the incumbent and not stamped: they
  are of another kind than those that could have been drawn.
- A file that was cut off anywhere is refused: it lacks its digest or fails it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import xxhash
import yaml

from epp.config.bounds import tuner_bounds
from epp.config.load import check_weights
from epp.config.section import Section
from epp.config.strict import decode
from epp.errors import ConfigError, gather, raise_all
from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Format that the tuner writes. 1 is weights alone, as a person would write them.
PLAN_VERSION = 2
INCUMBENT = "incumbent"
CANDIDATE = "candidate"
PREVIOUS = "previous"
_NOTE = "# Written by `epp tune`. To set a weight by hand use `epp weights pin`: it wins over this file.\n"

TrialId = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
WallSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
BlockSeconds = Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)]


class _Arms(Section, frozen=True, tag_field="kind"):
    """What both kinds of trial have.

    Attributes:
        id: name of this stage of this candidate, never used twice by one tuner; stamped on its samples.
        arm: what runs beside the incumbent: ``candidate``, or after a promotion the ``previous`` incumbent.
        weights: the arm's weights; ones not named are the incumbent's.
        valid_from_wall_s: Unix time of the first block.
        valid_until_wall_s: Unix time from which the incumbent alone serves again.
        block_s: length of a block (in a split: of the slices that are compared).
        seed: of the draws; the same in all stages of a candidate.
    """

    id: TrialId
    weights: dict[str, float]
    valid_from_wall_s: WallSeconds
    valid_until_wall_s: WallSeconds
    arm: Literal["candidate", "previous"] = "candidate"
    block_s: BlockSeconds = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        """A trial that ends before it begins is a mistake."""
        if not self.valid_from_wall_s < self.valid_until_wall_s:
            raise ValueError("valid_until_wall_s must come after valid_from_wall_s")

    def block_at(self, wall_s: float) -> int | None:
        """Number of the block at a time, None outside of the trial."""
        if not self.valid_from_wall_s <= wall_s < self.valid_until_wall_s:
            return None
        return math.floor((wall_s - self.valid_from_wall_s) / self.block_s)


class Split(_Arms, frozen=True, tag="split"):
    """Both arms at once, by session.

    Attributes:
        share: part of the sessions that the arm gets.
    """

    share: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.05

    def judged(self, _wall_s: float) -> bool:
        """Every request is: nothing is switched."""
        return True


class Switchback(_Arms, frozen=True, tag="switchback"):
    """The whole fleet switches between the arms: pairs of blocks, one each, in random order.

    Attributes:
        drop_share: first part of each block that is not judged, because the other arm's requests still run.
        every: only each so manieth pair is measured; between them the incumbent serves.
    """

    drop_share: Annotated[float, msgspec.Meta(ge=0.0, le=0.75)] = 0.25
    every: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1

    def arm_of_block(self, block: int) -> str | None:
        """Who serves a block; None in pairs that are not measured."""
        pair, second = divmod(block, 2)
        if pair % self.every:
            return None
        arm_first = keyed_uniform(self.seed, f"{self.id} {pair}", "pair order") < 0.5
        return self.arm if arm_first != bool(second) else INCUMBENT

    def judged(self, wall_s: float) -> bool:
        """Whether a request of this time is past the part of its block that is dropped."""
        into_s = math.fmod(wall_s - self.valid_from_wall_s, self.block_s)
        return into_s >= self.drop_share * self.block_s


Trial = Split | Switchback


class Plan(Section, frozen=True):
    """The tuner's file.

    Attributes:
        weights: the incumbent's weights; ones not named keep their value from the configuration.
        policy: the policy they were made for; another refuses the file. Empty in files without a trial only.
        version: format of the file.
        serial: counts the contents that this tuner published.
        written_wall_s: Unix time of writing, 0 when a person wrote it.
        reason: why these weights, in words.
        ended_for_fleet: trials that this tuner ended because the whole fleet suffered.
        trial: the second arm, None outside of a trial.
        digest: of everything above, required from version 2 on; see `render_plan`.
    """

    weights: dict[str, float] = {}
    policy: str = ""
    version: int = 1
    serial: Annotated[int, msgspec.Meta(ge=0)] = 0
    written_wall_s: WallSeconds = 0.0
    reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    ended_for_fleet: Annotated[int, msgspec.Meta(ge=0)] = 0
    trial: Trial | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a request gets.

    Attributes:
        arm: ``incumbent`` or the trial's arm.
        stamp: what its decision is marked with, for the tuner to read; empty for none.
        weights: the arm's weights as far as the plan names them.
    """

    arm: str
    stamp: str
    weights: Mapping[str, float]


def assign(plan: Plan, wall_s: float, session: str) -> Assignment:
    """Arm of a request at the moment of its dispatch.

    Args:
        plan: the file in force.
        wall_s: Unix time of the decision; the same value must be recorded with it.
        session: what keeps requests together: the client's session, else the prefix root below the template
            that everybody shares; empty when there is neither.
    """
    trial = plan.trial
    block = trial.block_at(wall_s) if trial is not None else None
    if trial is None or block is None:
        return Assignment(INCUMBENT, "", plan.weights)
    if isinstance(trial, Switchback):
        arm = trial.arm_of_block(block)
    elif not session:
        arm = None
    else:
        arm = trial.arm if keyed_uniform(trial.seed, session, "trial arm") < trial.share else INCUMBENT
    if arm is None:
        return Assignment(INCUMBENT, "", plan.weights)
    weights = plan.weights if arm == INCUMBENT else {**plan.weights, **trial.weights}
    return Assignment(arm, f"{trial.id}/{arm}/{block}", weights)


def render_plan(plan: Plan) -> bytes:
    """The file's content, version and digest set."""
    # YAML reads this character back as another: the digest would not fit, and every reader refuse the file.
    reason = plan.reason.replace("\x85", "\n")
    plain = msgspec.to_builtins(msgspec.structs.replace(plan, version=PLAN_VERSION, reason=reason, digest=""))
    # The version comes first and the digest last, so that no beginning of the file is a file.
    first = {"version": plain.pop("version")}
    rest = {**plain, "digest": _digest({**first, **plain})}
    lines = (yaml.safe_dump(part, sort_keys=False, allow_unicode=True) for part in (first, rest))
    text: str = _NOTE.join(lines)
    return text.encode()


def parse_plan(
    text: str | bytes, source: str, *, policy: str, bounds: Mapping[str, tuple[float, float]]
) -> Plan:
    """The tuner's file, checked; both arms within the hard bounds.

    Args:
        text: the file's content.
        source: its name, for errors.
        policy: the policy in force.
        bounds: configured ``(low, high)`` of each of its weights.

    Raises:
        ConfigError: empty or torn file, unknown weight, wrong policy or version, value out of bounds.
    """
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "write 'weights: {}' for no values")
    plan = decode(text, Plan, source)
    if plan.version not in (1, PLAN_VERSION):
        raise ConfigError(
            source,
            "version",
            f"version {plan.version} is not known",
            f"this program reads 1 and {PLAN_VERSION}",
        )
    if plan.version == 1 and plan.trial is not None:
        raise ConfigError(source, "trial", f"a trial needs version {PLAN_VERSION}")
    if plan.version == PLAN_VERSION:
        plain = msgspec.to_builtins(msgspec.structs.replace(plan, digest=""))
        if plan.digest != _digest(plain):
            raise ConfigError(source, "digest", "the file is torn or was changed by hand", "use overrides")
    if (plan.policy or plan.trial is not None) and plan.policy != policy:
        raise ConfigError(source, "policy", f"made for {plan.policy!r}, but {policy!r} is in force")
    allowed = tuner_bounds(policy, bounds)
    errors: list[ConfigError] = []
    for key, arm in (("weights", plan), ("trial.weights", plan.trial)):
        with gather(errors):
            check_weights(arm.weights if arm is not None else {}, source, key, allowed)
    raise_all(errors)
    return plan


def _digest(plain: Mapping[str, object]) -> str:
    content = {key: value for key, value in plain.items() if key != "digest"}
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))
