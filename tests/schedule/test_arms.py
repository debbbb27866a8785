"""Arms of a trial as the picker serves them: who gets which, what wins, what is stamped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from epp.config.plan import Plan, Split, Switchback, render_plan
from epp.policies.gorgo import Gorgo
from epp.schedule.prompt_roots import PromptRoots
from epp.schedule.weights import WeightBook
from epp_lab.tuner.samples import read_stamp
from tests.kit.records import picker_of
from tests.kit.requests import asked, measured

if TYPE_CHECKING:
    from epp.config.plan import Trial
    from epp.schedule.scheduler import Scheduler
    from epp.types import RequestInfo

START = 1_700_000_000.0
OLD = {"rtt_weight": 0.5, "queue_weight": 0.2}
NEW = {"rtt_weight": 0.3, "queue_weight": 0.4}


def split(**changes: Any) -> Split:
    values: dict[str, Any] = {"id": "c1-screen", "weights": NEW, "valid_from_wall_s": START}
    return Split(**{**values, "valid_until_wall_s": START + 3600.0, "share": 0.3, **changes})


def switchback(**changes: Any) -> Switchback:
    values: dict[str, Any] = {"id": "c1-switch", "weights": NEW, "valid_from_wall_s": START}
    return Switchback(**{**values, "valid_until_wall_s": START + 36_000.0, "block_s": 40.0, **changes})


def book(trial: Trial | None = None, *, overrides: bytes | None = None) -> WeightBook:
    weights = WeightBook(
        policy="gorgo", specs=Gorgo.weight_specs, configured={}, bounds={}, source="epp.yaml"
    )
    weights.update("tuner", render_plan(Plan(weights=OLD, policy="gorgo", trial=trial)), "weights.yaml")
    weights.update("override", overrides, "overrides.yaml")
    return weights


def picker(weights: WeightBook) -> Scheduler:
    made = picker_of()
    made.weights = weights
    return made


def test_a_session_keeps_its_arm_and_the_decision_says_so() -> None:
    serving = picker(book(split()))
    arms: dict[str, set[str]] = {}
    for number in range(400):
        session = f"s{number % 100}"
        prompt = measured(1, 1000, [number], 64.0)
        decision = serving.decide(asked(prompt=prompt, session=session), 0.0, START + number)
        stamp = read_stamp(decision.arm)
        assert stamp is not None
        assert stamp.trial == "c1-screen"
        assert stamp.block == number // 60
        expected = NEW if stamp.arm == "candidate" else OLD
        assert decision.weights.items() >= expected.items()
        arms.setdefault(session, set()).add(stamp.arm)
    assert all(len(found) == 1 for found in arms.values())
    share = Counter(next(iter(found)) for found in arms.values())["candidate"]
    assert 15 <= share <= 45


def test_the_whole_fleet_switches_by_the_wall_clock() -> None:
    serving = picker(book(switchback()))
    by_block: dict[int, set[str]] = {}
    for second in range(0, 800, 5):
        decision = serving.decide(asked(), 0.0, START + second)
        stamp = read_stamp(decision.arm)
        assert stamp is not None
        by_block.setdefault(second // 40, set()).add(stamp.arm)
    assert all(len(arms) == 1 for arms in by_block.values())
    for pair in range(10):
        assert by_block[2 * pair] != by_block[2 * pair + 1]


def test_a_request_that_the_policy_does_not_price_belongs_to_no_arm() -> None:
    decision = picker(book(switchback())).decide(asked(opaque=True), 0.0, START)
    assert decision.policy == "least-request"
    assert not decision.arm


def prompt(template: int, conversation: int, turn: int, length: int = 5) -> RequestInfo:
    """Blocks are chained hashes: those of a template are equal, those below it are a conversation's own."""
    shared = [template * 1_000_000 + depth for depth in range(length)]
    own = [template * 1_000_000 + conversation * 1000 + 100 + depth for depth in range(turn)]
    return measured(7, 4000, [*shared, *own], 64.0)


def learned() -> PromptRoots:
    roots = PromptRoots()
    for number in range(120):
        roots.learn(prompt(number % 3 + 1, 500 + number, 2))
    return roots


def test_the_root_of_a_conversation_lies_below_its_template() -> None:
    roots = learned()
    found = [roots.root(prompt(2, 9, turn)) for turn in range(1, 6)]
    assert found == [2_009_100] * 5
    assert roots.root(prompt(2, 10, 1)) == 2_010_100


def test_requests_without_sessions_are_drawn_by_their_root() -> None:
    serving = picker(book(split(share=0.5)))

    def stamp(ask: RequestInfo) -> str:
        return serving.decide(ask, START, START).arm

    for number in range(150):
        stamp(asked(prompt=prompt(1, 500 + number, 2)))
    found = {}
    for number in range(40):
        stamps = {stamp(asked(prompt=prompt(1, number, turn))) for turn in range(1, 5)}
        assert len(stamps) == 1
        found[number] = stamps.pop()
    assert len(set(found.values())) == 2
