"""What is on disk: torn files, a process that dies at any write, commands on the shared folder."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.cli import main
from epp.config.plan import parse_plan
from epp.policies.registry import create
from epp_lab.sidecar.process import LockHeldError, holder_of, process_lock
from epp_lab.tuner.state import OperatorRequest
from epp_lab.tuner.tuner import ask
from epp_lab.tuner.verdict import PASS, TrialVerdict
from tests.kit.tunework import GOOD, STARTING, CrashError, World

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A deployment in the middle of a screen."""
    world = World(tmp_path_factory.mktemp("lived"), [GOOD])
    world.start()
    world.until("screen")
    world.run(4)
    return world


def within_bounds(world: World) -> None:
    text = world.paths.weights.read_bytes()
    plan = parse_plan(text, "weights.yaml", policy="gorgo", bounds=world.book.bounds)
    assert plan.weights in (STARTING, GOOD)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_prefix_of_any_file_survives_picker_and_tuner_go_on(
    lived: World, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    broken = lived.again(folder)
    broken.die()
    paths = broken.paths
    named = [paths.weights, paths.lock, paths.requests, broken.overrides]
    for path in named:
        if path.exists() and data.draw(st.booleans(), label=path.name):
            content = path.read_bytes()
            path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    before = broken.book.current
    broken.look()
    assert broken.book.current == before or broken.book.current.values in (STARTING, GOOD)
    broken.start()
    broken.run(4)
    within_bounds(broken)
    assert broken.state.incumbent == STARTING


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_killed_at_any_write_it_goes_on_and_nothing_counts_twice(
    lived: World, tmp_path: Path, after: bool
) -> None:
    for write in (0, 2, 5, 9):
        folder = tmp_path / f"{write}"
        world = lived.again(folder, finds=[GOOD])
        world.disk.dies_in, world.disk.after = write, after
        with pytest.raises(CrashError):
            world.run(200)
        world.disk.dies_in = None
        world.die()
        world.look()
        assert not world.picker_errors
        within_bounds(world)
        world.start()
        world.run(10)
        within_bounds(world)
        assert world.tuner is not None
        feed = world.tuner.feed.state
        written = sum(path.read_bytes().count(b'"kind":"outcome"') for path in world.records.iterdir())
        assert feed.seen <= written, "no sample twice"
        world.die()


def configured(folder: Path, policy: str = "gorgo", extra: str = "") -> Path:
    path = folder / "epp.yaml"
    path.write_text(
        f"policy: {{name: {policy}}}\nweights_file: weights.yaml\noverrides_file: overrides.yaml\n"
        f"records: {{folder: records}}\n{extra}"
    )
    return path


def epp(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("weights", "pin", "queue_weight=99"), "out of bounds"),
        (("weights", "pin", "queue_weight=fast"), "not a number"),
        (("weights", "unpin", "queue_weight", "--all"), "beside --all"),
        (("weights", "rollback", "3"), "no weights with number 3"),
    ],
)  # fmt: skip
def test_mistakes_are_told_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert epp(*words, "--config", configured(tmp_path)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "overrides.yaml").exists()


@pytest.mark.parametrize("policy", ["gorgo", "gorgo-hillclimb"])
def test_a_pin_that_takes_the_queue_from_gorgo_is_kept_and_told_what_it_did(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path, policy)
    assert epp("weights", "pin", "queue_weight=0.1", "--config", config) == 0
    assert not capsys.readouterr().err
    assert epp("weights", "pin", "queue_weight=0", "--config", config) == 0
    assert "E2E p95 12.6 s instead of 2.5" in capsys.readouterr().err
    assert "queue_weight: 0.0" in (tmp_path / "overrides.yaml").read_text(encoding="utf-8")


def test_where_the_operators_file_is_read_only_the_command_for_the_cluster_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("epp.ops.weights.replace_file", read_only)
    config = configured(tmp_path)
    assert epp("weights", "pin", "queue_weight=0.7", "--config", config, "--namespace", "ai") == 3
    said = capsys.readouterr().out
    assert "kubectl patch configmap gorgo-epp-overrides --namespace ai --type merge" in said
    assert "overrides.yaml" in said
    assert "queue_weight: 0.7" in said


def test_pins_need_no_records_and_a_broken_file_is_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text("policy: {name: gorgo}\nweights_file: weights.yaml\noverrides_file: overrides.yaml\n")
    overrides = tmp_path / "overrides.yaml"
    overrides.write_text("weights: {rtt_weight: 1000}\n")
    assert epp("weights", "pin", "queue_weight=0.7", "--config", config) == 2
    assert "`epp weights unpin --all` begins the file anew" in capsys.readouterr().err
    assert epp("weights", "unpin", "--all", "--config", config) == 0
    assert epp("weights", "pin", "queue_weight=0.7", "--config", config) == 0
    capsys.readouterr()
    assert epp("weights", "unpin", "rtt_weight", "--config", config) == 0
    said = capsys.readouterr().out
    assert "rtt_weight was not pinned" in said
    assert "pinned: queue_weight=0.7" in said
    assert epp("tune", "freeze", "--config", config) == 0
    assert epp("tune", "--config", config) == 2
    assert "records.folder: not set (set it, or give --records DIR)" in capsys.readouterr().err
    assert epp("tune", "status") == 2
    assert "give --config epp.yaml, or --weights FILE" in capsys.readouterr().err


def test_history_rollback_freeze_and_status_without_a_running_tuner(
    lived: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = lived.again(tmp_path)
    assert world.tuner is not None
    world.run(2)
    world.stop()
    config = configured(tmp_path)
    assert epp("tune", "status", "--config", config) == 0
    said = capsys.readouterr().out
    for words in ("not running", "phase: screen", "candidate 1: ", "not enough evidence (", "next: "):
        assert words in said
    assert epp("weights", "history", "--config", config) == 0
    assert "0: " in capsys.readouterr().out
    assert epp("weights", "rollback", "0", "--reason", "a ticket", "--config", config) == 0
    assert epp("tune", "status", "--config", config) == 0
    said = capsys.readouterr().out
    assert "phase: frozen" in said
    assert "next: nothing, until somebody says" in said, "no drift thaws what was frozen by request"
    assert epp("tune", "thaw", "--config", config) == 0
    assert "done, no tuner is running: baseline" in capsys.readouterr().out
    assert epp("tune", "thaw", "--config", config) == 0
    assert "nothing to thaw: no reason given" in capsys.readouterr().err
    assert epp("weights", "history", "--config", config) == 0
    assert "a ticket" in capsys.readouterr().out
    within_bounds(world)


def test_what_a_tuner_that_stopped_was_asked_for_is_done_before_the_next_word(
    lived: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = lived.again(tmp_path)
    assert world.tuner is not None
    world.run(2)
    ask(world.paths, OperatorRequest("freeze", "holidays"))
    world.stop()
    assert epp("tune", "thaw", "--config", configured(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "done before it, asked of a tuner that has stopped: freeze" in said
    assert "done, no tuner is running: baseline" in said
    world.start()
    world.run(2)
    assert world.state.phase == "baseline", "neither is done once more"
    assert world.state.reason == "by request: no reason given"


def test_the_configuration_of_another_policy_costs_no_memory(
    lived: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = lived.again(tmp_path)
    assert world.tuner is not None
    world.run(2)
    world.stop()
    kept = [world.paths.weights, world.paths.memory]
    before = [path.read_bytes() for path in kept]
    config = configured(tmp_path, "gorgo-ms")
    assert epp("tune", "freeze", "--config", config) == 2
    said = capsys.readouterr().err
    assert f"{config}: line 1, column 10: policy.name: 'gorgo-ms', but the tuner's memory beside " in said
    assert "is of policy 'gorgo' (give the configuration with 'gorgo'; nothing was changed)" in said
    assert [path.read_bytes() for path in kept] == before
    assert not world.paths.requests.exists(), "no tuner does it later, either"


def test_a_word_to_a_tuner_that_stopped_judges_nothing_that_nobody_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, world = configured(tmp_path), World(tmp_path, [GOOD])
    world.start()
    world.until("switchback")
    world.run(30)
    world.die()  # with blocks of which some requests have been read
    monkeypatch.setattr(
        "epp_lab.tuner.trials.judge_switchback", lambda *_: TrialVerdict(PASS, "all of them fast")
    )
    assert epp("tune", "freeze", "--reason", "it does harm", "--config", config) == 0
    assert "done, no tuner is running: frozen: by request: it does harm\n" in capsys.readouterr().out
    world.start()
    assert (world.state.phase, world.state.incumbent) == ("frozen", STARTING)
    assert [change.how for change in world.state.history] == ["start"]


def test_what_operators_pin_at_the_same_moment_is_all_pinned(tmp_path: Path) -> None:
    config = configured(tmp_path, "laar")
    names = create("laar").weight_specs
    start = Barrier(len(names))

    def pin(name: str) -> int:
        start.wait()
        return epp("weights", "pin", f"{name}=2", "--config", config)

    with ThreadPoolExecutor(len(names)) as operators:
        assert set(operators.map(pin, names)) == {0}
    pinned = yaml.safe_load((tmp_path / "overrides.yaml").read_text())["weights"]
    assert pinned == dict.fromkeys(names, 2.0)


def test_a_memory_that_is_damaged_is_not_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path)
    (tmp_path / "records").mkdir()
    memory = tmp_path / "weights.tuner.json"
    memory.write_text("{}")
    for words in (("tune",), ("tune", "status"), ("tune", "thaw"), ("weights", "history")):
        assert epp(*words, "--config", config) == 2
        said = capsys.readouterr().err
        assert f"{memory}: " in said
        assert (
            "it is damaged, or of another version of epp: start that version, or move the file away" in said
        )
    assert memory.read_text() == "{}"


_HOLD = """
import sys
from pathlib import Path
from epp_lab.sidecar.process import process_lock
with process_lock(Path(sys.argv[1]), "tuner"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_refused_and_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    words = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(LockHeldError, match=f"a tuner runs on this file already: pid {process.pid} on "),
            process_lock(path, "tuner"),
        ):
            pass
        assert holder_of(path).startswith(f"pid {process.pid} on ")
        process.kill()
        process.wait()
    assert holder_of(path) == ""
    with process_lock(path, "tuner"):
        assert holder_of(path).startswith(f"pid {os.getpid()} on ")
    assert holder_of(path) == ""
