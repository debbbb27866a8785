"""What is on disk: torn files, a process that dies at any write, commands on the shared folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.cli import main
from epp.config.plan import parse_plan
from epp.learn.tuner.tuner import OperatorRequest, ask
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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    for write in range(0, 12, 2):
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


def test_where_the_operators_file_is_read_only_the_command_for_the_cluster_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("epp.learn.sidecar.files.Files.replace", read_only)
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
    assert f"{config}: policy.name: 'gorgo-ms', but the tuner's memory beside " in said
    assert "is of policy 'gorgo' (give the configuration with 'gorgo'; nothing was changed)" in said
    assert [path.read_bytes() for path in kept] == before
    assert not world.paths.requests.exists(), "no tuner does it later, either"
