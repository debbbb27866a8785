"""The simulated deployment that a tuner lives in, and the page about it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from epp.demo.tuner import START, chat, defaults_of, main, rules_of
from epp.demo.tuner_report import Story, render
from epp.demo.tuner_world import BEGIN_WALL_S, TICK_S, Life, Piece, Stretch
from epp.sim.engine_class import L40S_X2
from epp.sim.scenario import regional_fleet
from epp.tuner import machine
from epp.tuner.plan import Plan, Split, Switchback
from epp.tuner.settings import Stages, TunerSettings
from epp.tuner.state import Change, NothingBetter, Proposed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epp.replay.trace import TraceRequest
    from epp.tuner.plan import Trial
    from epp.tuner.samples import Sample
    from epp.tuner.state import State

FLEET = regional_fleet(L40S_X2)
POLICY = "gorgo-ms"
LATER_WALL_S = BEGIN_WALL_S + 40_000.0


class Watcher:
    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.looks: list[float] = []

    def answered(self, sample: Sample) -> None:
        self.samples.append(sample)

    def look(self, now_wall_s: float) -> None:
        self.looks.append(now_wall_s)


def stretch_under(trial: Trial) -> tuple[Stretch, Watcher]:
    watcher = Watcher()
    load = chat(1, rate_rps=2.0, duration_s=120.0)
    stretch = Stretch(load, FLEET, POLICY, START, seed=1, observer=watcher, begin_wall_s=LATER_WALL_S)
    stretch.publish(Plan(weights=defaults_of(POLICY), policy=POLICY, trial=trial))
    stretch.loop.run(lambda: stretch.busy)
    return stretch, watcher


@pytest.mark.parametrize("kind", [Split, Switchback])
def test_samples_carry_the_arm_that_the_picker_chose(kind: type[Split | Switchback]) -> None:
    trial = kind(
        id="c1",
        weights=dict(START),
        valid_from_wall_s=LATER_WALL_S + 20.0,
        valid_until_wall_s=LATER_WALL_S + 1000.0,
        block_s=20.0,
    )
    _, watcher = stretch_under(trial)
    told = Counter(sample.stamp.arm if sample.stamp else "none" for sample in watcher.samples)
    assert told["candidate"] > 0
    assert told["incumbent"] > 0
    assert len({sample.weights_version for sample in watcher.samples}) == 2
    for sample in watcher.samples:
        assert sample.dispatched_wall_s >= LATER_WALL_S
        if sample.stamp is not None:
            assert trial.block_at(sample.dispatched_wall_s) == sample.stamp.block
    assert watcher.looks[0] == pytest.approx(LATER_WALL_S)
    assert watcher.looks[1] - watcher.looks[0] == pytest.approx(TICK_S)


def test_every_request_becomes_one_sample() -> None:
    split = Split(
        id="c1", weights={}, valid_from_wall_s=LATER_WALL_S - 20.0, valid_until_wall_s=LATER_WALL_S - 10.0
    )
    stretch, watcher = stretch_under(split)
    assert len({sample.id for sample in watcher.samples}) == len(stretch.requests)
    assert all(sample.stamp is None and sample.ttft_ms <= sample.e2e_ms for sample in watcher.samples)


def life(answers: list[dict[str, float]], *, freeze_after: int = 1) -> Life:
    stages = Stages(baseline_requests=60, baseline_s=30.0, freeze_after=freeze_after)
    rules = rules_of(POLICY, TunerSettings(stages=stages))

    def rehearse(
        state: State, now_wall_s: float, requests: Sequence[TraceRequest]
    ) -> Proposed | NothingBetter:
        assert requests
        assert state.thresholds is not None
        if answers:
            return Proposed(now_wall_s, answers.pop(0), "said so")
        return NothingBetter(now_wall_s, "nothing found")

    return Life(
        policy=POLICY,
        fleet=FLEET,
        load=lambda number: chat(number % 1000, rate_rps=2.0, duration_s=60.0),
        state=machine.start(POLICY, defaults_of(POLICY), rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        stop=lambda state: state.phase == "frozen",
    )


def test_time_and_state_go_on_from_stretch_to_stretch() -> None:
    world = life([], freeze_after=2)
    world.run(stretches=10)
    assert world.state.phase == "frozen"
    assert world.state.fruitless == 2
    times = [sample.ended_wall_s for sample in world.samples]
    assert times == sorted(times)
    assert times[-1] > BEGIN_WALL_S + 60.0


def test_a_proposal_reaches_the_picker_as_a_trial() -> None:
    world = life([dict(START)])
    world.stop = lambda state: bool(state.record.units)
    world.run(stretches=30)
    arms = {sample.stamp.arm for sample in world.samples if sample.stamp is not None}
    assert arms == {"incumbent", "candidate"}
    assert world.evidence[1, "screen 0"]


def test_the_page_shows_promotions_and_bounds() -> None:
    world = life([])
    world.run(stretches=3)
    moved = {**defaults_of(POLICY), "network_weight": 2.0}
    pieces = [Piece(90.0 * n, -0.05 if n % 2 else -0.01, 0.0) for n in range(60)]
    page = render(
        Story(
            title="A <life>",
            lead="of one",
            plane=("network_weight", "prefill_weight"),
            tried=[moved],
            history=[
                Change(0, BEGIN_WALL_S, defaults_of(POLICY), "start", "first"),
                Change(1, BEGIN_WALL_S + 60.0, moved, "promoted", "better"),
            ],
            notes=world.notes,
            evidence={(1, "switchback 2"): pieces, (1, "screen 0"): pieces},
            samples=world.samples,
            begin_wall_s=BEGIN_WALL_S,
            bound=0.15,
            level=0.05,
        )
    )
    assert "A &lt;life&gt;" in page
    assert "Candidate 1: switchback" in page
    assert "Candidate 1: screen" not in page
    assert "-3.00 [" in page
    assert "nan" not in page.lower().replace("tenant", "")
    plots = ET.fromstring(f"<r>{page[page.index('<main>') : page.index('</body>')]}</r>").iter("svg")  # noqa: S314 - ours
    assert len(list(plots)) == 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hours", "nan"], "--hours must be above 0"),
        (["--hours", "-1"], "--hours must be above 0"),
        (["--seed", "-1"], "--seed must be 0 or more"),
        (["--out", "{folder}"], "{folder} is a folder; name the page's file, e.g. tuner.html"),
        (["--out", "{folder}/file/page.html"], "{folder}/file is no folder that can be written to"),
    ],
)
def test_what_would_lose_the_page_is_refused_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([flag.format(folder=tmp_path) for flag in flags]) == 2
    said = capsys.readouterr()
    assert words.format(folder=tmp_path) in said.err
    assert not said.out
