"""Figures, baselines and goals: what is printed is what was measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epp.errors import EppError
from epp.lab.bench import cpu
from epp.lab.bench.figures import Figures, load, percentile
from epp.lab.bench.goals import GOALS

NAME = "core/18k/3/warm"


def figures(*values: float, name: str = NAME) -> Figures:
    found = Figures()
    for value in values:
        found.add(name, "ms", value, "a note")
    return found


def test_a_goal_stands_beside_the_median_and_says_whether_it_is_met() -> None:
    goal = GOALS[NAME].most
    met, missed = (
        figures(goal * 0.5, goal * 0.9, goal * 9).table(),
        figures(goal * 0.5, goal * 1.1, goal * 9).table(),
    )
    assert "met" in met and "MISSED" not in met  # noqa: PT018
    assert "MISSED" in missed
    assert "a note" in met


def test_a_saved_baseline_comes_back_and_gives_ratios(tmp_path: Path) -> None:
    figures(2.0, 4.0, 6.0).save(tmp_path / "base.json")
    before, settings = load(tmp_path / "base.json")
    assert before.found[NAME].values == [2.0, 4.0, 6.0]
    assert settings["cores"] == os.cpu_count()
    assert " 0.50" in figures(2.0).table(before)
    assert "-" in figures(1.0, name="core/new").table(before).splitlines()[-1]


def test_ratios_of_rounds_that_took_turns_are_taken_round_by_round() -> None:
    # The machine was three times slower in the second round, for both: the ratio does not see it.
    line = figures(1.0, 3.0).table(figures(2.0, 6.0), paired=True).splitlines()[-1]
    assert "0.50 [0.50-0.50]" in line


@pytest.mark.parametrize(
    ("ours", "before", "paired"),
    [
        ((-6.0,), (-3.0,), False),
        ((2.0,), (-4.0,), False),
        ((-0.5, 0.4), (-1.0, 0.5), True),
        ((1.0, 3.0), (2.0, 0.0), True),
        ((1.0, 3.0), (6.0,), True),
    ],
)
def test_there_is_no_ratio_of_what_is_below_zero_or_lacks_a_round(
    ours: tuple[float, ...], before: tuple[float, ...], paired: bool
) -> None:
    line = figures(*ours, name="envoy/added").table(figures(*before, name="envoy/added"), paired=paired)
    assert line.splitlines()[-1].split("ms")[1].split() == ["-", "a", "note"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"figures": {"a": 1}, "settings": {}}'])
def test_what_is_no_baseline_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "base.json"
    file.write_text(text)
    with pytest.raises(EppError, match="no baseline"):
        load(file)
    with pytest.raises(EppError, match="cannot read"):
        load(tmp_path / "missing.json")


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(range(100), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0


def test_cpu_time_of_another_process_is_its_own() -> None:
    busy = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfor _ in range(2_000_000): pass\nprint(1, flush=True)\nsys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert busy.stdout is not None
        assert busy.stdin is not None
        busy.stdout.readline()
        spent, again = cpu.cpu_s(busy.pid), cpu.cpu_s(busy.pid)
        assert spent > 0.0
        time.sleep(0.05)  # it waits: nothing is added but what the end of a turn takes
        assert cpu.cpu_s(busy.pid) - again < 0.03
        holds = cpu.held(busy.pid)
        assert holds.rss_bytes > 1_000_000
        assert holds.descriptors >= 3
        assert holds.threads == 1
        busy.stdin.close()
        busy.wait(10)
    finally:
        busy.kill()
        busy.wait()
        if busy.stdout is not None:
            busy.stdout.close()
    with pytest.raises(OSError, match=r"."):
        cpu.held(busy.pid)


@pytest.mark.parametrize("asked", ["", "1"])
def test_a_process_is_preferred_only_where_that_was_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Path("/proc/self/autogroup")
    if not group.exists():
        pytest.skip("no autogroups here")
    monkeypatch.setenv(cpu.PREFER_VARIABLE, asked)
    script = f"""
import os, pathlib
from epp.lab.bench.cpu import prefer
group = pathlib.Path("{group}")
prefer(os.getpid())
print(group.read_text())
try:
    print("may", group.write_text("-19"))
except OSError:
    pass
"""
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,  # the tests' own session is left as it is
    ).stdout
    assert ("nice -19" in said) == (bool(asked) and "may" in said)
    cpu.prefer(0)  # no such process: nothing happens


def test_instructions_are_counted_or_not_known() -> None:
    with cpu.Instructions(os.getpid()) as counter:
        sum(range(100_000))
    assert counter.count is None or counter.count > 100_000
