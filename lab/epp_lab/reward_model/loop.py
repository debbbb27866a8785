"""The learner's loop: read what is new, hold a round when one is due, persist, publish; let the trial go on.

Owns the order within a tick, the model file with its last versions, and the status: what is written of where
the learner stands, and how `epp learn status` says it, on any machine that sees the shared folder.

Rules
- Memory first, model file second: whoever is killed in between publishes after the restart, and what was read
  since the last memory is read again. Nothing counts twice and nothing is lost.
- A version's own file comes before the file that pickers read: a picker never names a version in its records
  that cannot be found.
- What cannot be written is reported once and tried again; pickers keep what they have.
- The memory is MessagePack, arrays in it as numbers, models as their files. Which requests were read is in it
  too: after a restart nothing counts twice, and what came since is read again from the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from epp.errors import ConfigError
from epp.feeds.files import read_file
from epp.records.files import DAMAGED
from epp.records.model_files import dump_reward_model, parse_reward_model, version_path
from epp.records.weight_files import load_memory
from epp_lab.reward_model.guard import WORDS, look_at_the_clock
from epp_lab.reward_model.rounds import Learner, Memory
from epp_lab.reward_model.samples import LogFeed, array, plain
from epp_lab.sidecar.feed import FeedState  # noqa: TC001  # msgspec reads annotations at run time
from epp_lab.sidecar.process import Files, Writes, lost, running
from epp_lab.tuner.watch import comparison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.policies.reward_model import RewardModel
    from epp_lab.reward_model.guard import GuardState
    from epp_lab.reward_model.rounds import Round
    from epp_lab.reward_model.settings import LearnerSettings
    from epp_lab.sidecar.process import ModelPaths
    from epp_lab.tuner.setup import Setup as TrialSetup
    from epp_lab.tuner.tuner import Tuner


#: Logged choices are persisted up to so many rows of inputs, newest first; what is lost costs one round.
_LOG_ROWS = 100_000


class Saved(msgspec.Struct):
    """What is on file.

    Attributes:
        features: that the samples have; of others they teach nothing.
        feed: where the records were read to.
        memory: of the learner.
        incumbent: the model as its file; empty for none.
    """

    features: tuple[str, ...]
    feed: FeedState
    memory: Memory
    incumbent: bytes


def encode(learner: Learner, feed: FeedState) -> bytes:
    """Write a learner's memory."""
    memory, rows = learner.memory, 0
    for kept, entry in enumerate(reversed(memory.log)):  # how many fit
        rows += len(entry.choice.rows)
        if rows > _LOG_ROWS:
            memory = msgspec.structs.replace(memory, log=memory.log[-kept:])
            break
    model = learner.incumbent
    content = b"" if model is None else dump_reward_model(model)
    return _ENCODER.encode(Saved(learner.settings.network.features, feed, memory, content))


def learner_of(saved: Saved, settings: LearnerSettings, source: str) -> Learner:
    """Return the learner whose memory was written to ``source``.

    Raises:
        ConfigError: the model in it is none.
    """
    learner = Learner(settings, memory=saved.memory)
    if saved.incumbent:
        learner.incumbent = parse_reward_model(saved.incumbent, f"{source}: the memory")
    return learner


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)
#: Reads a memory, and raises ValueError where it is none.
decode = msgspec.msgpack.Decoder(Saved, dec_hook=array).decode


#: Without news the status is written so often, and the model file looked at.
STATUS_S = 5.0
#: A memory that could not be written is tried again so often.
_RETRY_S = 5.0
#: Versions that are kept beside the file; `epp records verify` needs those that its records name.
KEPT_VERSIONS = 20
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is configured.

    Attributes:
        settings: of the learner.
        paths: files around the model file.
        records: folder of the flight recorder.
        config: the picker's configuration.
        trial: what a trial works on; None where models decide without one, or only shadow.
        note: why there is no trial, in words; empty when there is one.
    """

    settings: LearnerSettings
    paths: ModelPaths
    records: Path
    config: Config
    trial: TrialSetup | None
    note: str = ""


class Loop:
    """Drives a learner. `open` it once, then `tick`; whoever makes one holds the lock.

    Args:
        setup: settings, files and records.
        clock: the time.
        report: takes sentences for the log.
        files: writes.
    """

    def __init__(
        self, setup: Setup, *, clock: Clock, report: Callable[[str], None], files: Files | None = None
    ) -> None:
        self._settings, self._paths, self._records = setup.settings, setup.paths, setup.records
        self._clock, self._report, self._files = clock, report, files or Files()
        self._writes = Writes(report, self._files)
        self._status_s = self._retry_s = _LONG_AGO
        self._unsaved = False
        #: Version in the model file, empty for no file, None where it has to be written; and the content.
        self._published: str | None = None
        self._content: bytes | None = None
        #: Tries the learned policy against the heuristic; None where nothing is to be tried.
        self.trial: Tuner | None = None
        self.learner: Learner
        self.feed: LogFeed

    def open(self, *, go_on: bool = False) -> None:
        """Read the memory; nothing is written before the first tick.

        Args:
            go_on: from the model on file, which is that of the learner that led before.

        Raises:
            EppError: the memory is there and cannot be used.
        """
        saved, features = load_memory(self._paths.memory, decode), self._settings.network.features
        if saved is not None and saved.features != features:
            self._report(f"{self._paths.memory}: it is of other features; learning begins anew")
            saved = None
        self.learner, state = Learner(self._settings), None
        if saved is not None:
            self.learner, state = learner_of(saved, self._settings, str(self._paths.memory)), saved.feed
        found = self._in_file() if go_on else None
        if found is not None and found.features == features:
            self.learner.incumbent = found
        self.feed = LogFeed(self._records, features=features, report=self._report, state=state)

    def _in_file(self) -> RewardModel | None:
        try:
            content = read_file(self._paths.model)
            return None if content is None else parse_reward_model(content, str(self._paths.model))
        except (OSError, ConfigError) as error:
            self._report(f"{error}; beginning without a model")
            return None

    def tick(self) -> None:
        """Do one round of the loop; call it every second or so."""
        learner, now_wall_s = self.learner, self._clock.wall_s()
        stepped_s = self.feed.check_clock(self._clock, wait_s=self._settings.late_s)
        if stepped_s:
            self._report(f"the clock stepped by {stepped_s:+.1f} s: requests around it teach nothing")
        look_at_the_clock(learner.memory.guard, now_wall_s, self._settings, stepped_s=stepped_s)
        for entry in self.feed.new(now_wall_s, give_up_s=self._settings.late_s):
            learner.add(entry)
        for reason in learner.retreats:
            self._report(f"the model in force is taken away, the heuristic decides: {reason}")
            self._hurry()
        learner.retreats.clear()
        # The feed's position covers all that was read, so a round is held when all of it was taken.
        if learner.due():
            self._hold(now_wall_s)
        self._write()
        if self.trial is not None:
            self.trial.tick()

    def drop(self) -> None:
        """Write nothing any more."""
        if self.trial is not None:
            self.trial.drop()

    def close(self) -> None:
        """Write the memory."""
        if self.trial is not None:
            self.trial.close()
        self._hurry()
        self._write()

    def _hurry(self) -> None:
        self._unsaved, self._retry_s, self._status_s = True, _LONG_AGO, _LONG_AGO

    def _hold(self, now_wall_s: float) -> None:
        began_s = self._clock.mono_s()
        self.learner.train(now_wall_s)
        held = self.learner.last
        assert held is not None  # noqa: S101 - a round was just held
        took_s = self._clock.mono_s() - began_s
        self._report(
            f"round {held.number}, {held.seen} requests seen: {held.verdict.reason} ({took_s:.1f} s)"
        )
        if held.withdrawn:
            self._report("the model in force is withdrawn; the heuristic decides")
        self._hurry()

    def _write(self) -> None:
        now_s, now_wall_s = self._clock.mono_s(), self._clock.wall_s()
        if self._unsaved and now_s >= self._retry_s:
            content = encode(self.learner, self.feed.state)
            self._unsaved = not self._writes.replace("the learner's memory", self._paths.memory, content)
            self._retry_s = now_s + _RETRY_S
        look = now_s - self._status_s >= STATUS_S
        if look:
            self._check_file()
        if not self._unsaved:
            self._publish(self.learner.in_force(now_wall_s))
        if look:
            self._status_s = now_s
            content = msgspec.json.encode([*learner_lines(self.learner, self.feed.state, now_wall_s)])
            self._writes.replace("the status", self._paths.status, content)

    def _check_file(self) -> None:
        """Have the model file written again where it is not as it was written."""
        if self._published is not None and (what := lost(self._paths.model, self._content)):
            self._report(f"{self._paths.model} {what}; brought back to what the learner says")
            self._published = None

    def _publish(self, model: RewardModel | None) -> None:
        """Make the model file say this model, or be gone; called again until it does."""
        version = "" if model is None else model.version
        if version == self._published:
            return
        content = None if model is None else dump_reward_model(model)
        if self._writes.attempt("the model file", lambda: self._put(version, content)):
            self._published, self._content = version, content

    def _put(self, version: str, content: bytes | None) -> None:
        file, files = self._paths.model, self._files
        current = None
        if content is None:
            files.remove(file)
        else:
            current = version_path(file, version)
            files.replace(current, content)
            if read_file(file) != content:
                files.replace(file, content)
        others = [path for path in self._paths.versions() if path != current]
        for path in others[: max(len(others) - KEPT_VERSIONS + (current is not None), 0)]:
            files.remove(path)


def status_lines(paths: ModelPaths, now_wall_s: float) -> list[str]:
    """Write the learner's part of the answer."""
    lines = [f"learner: {running(paths.lock, paths.status, now_wall_s)}"]
    try:
        told = msgspec.json.decode(read_file(paths.status) or b"[]", type=list[str])
    except (OSError, *DAMAGED):
        told = []
    return lines + (told or [f"no status beside {paths.model}: no learner has run on this file"])


def learner_lines(learner: Learner, feed: FeedState, now_wall_s: float) -> Iterator[str]:
    """Write where a learner stands."""
    memory, model = learner.memory, learner.incumbent
    yield f"requests seen: {memory.seen}; {feed.damaged} lines were damaged"
    yield f"kept: {len(memory.recent)} newest, {len(memory.older)} older; {len(feed.waiting)} under way"
    missing = max(learner.missing, 0)
    yield f"rounds: {memory.rounds}, {memory.passed} passed the gate; next in {missing} requests"
    if model is None:
        yield "model: none in force, the heuristic decides"
    else:
        price, trained = model.congestion_ms, datetime.fromtimestamp(model.trained_at_s, UTC)
        yield (
            f"model: {model.version}, round {model.round}, {model.samples} samples, trained at "
            f"{trained:%Y-%m-%d %H:%MZ}; predicts {' and '.join(model.heads)}"
            + (f"; classes {', '.join(map(repr, model.classes))}" if model.classes else "")
            + (f"; a token to compute takes {price:.2g} ms from others" if price else "")
        )
    if learner.settings.guarded:
        yield from _guard_lines(memory.guard, now_wall_s)
        if model is not None and learner.rests(now_wall_s):
            yield "  it is the heuristic's turn: its blocks keep the comparison fresh"
    if learner.last is not None:
        yield from round_lines(learner.last)


def _guard_lines(guard: GuardState, now_wall_s: float) -> Iterator[str]:
    """Write how the whole fleet does under models, beside the heuristic."""
    for name, watch in guard.watches.items():
        what, of = WORDS[name]
        line = f"guard: {of}, {len(watch.baseline)} blocks of the heuristic"
        if watch.blocks:
            found = comparison(watch, "under the heuristic at that load", what)
            line += f"; under models {found}; evidence {watch.evidence:.2g}"
        if watch.alone:
            line += f"; {watch.alone} without comparison"
        yield line
    if guard.retreats:
        held_s = guard.held_until_wall_s - now_wall_s
        held = f"; models are held back for {held_s:.0f} s more" if held_s > 0.0 else ""
        yield f"  retreats to the heuristic: {guard.retreats}{held}"


def round_lines(held: Round) -> Iterator[str]:
    """Write a round."""
    figures = held.verdict.figures
    of = f"trained on {held.trained} samples ({held.replayed} older), judged on {held.held_out}"
    yield f"round {held.number}: {of}: {held.verdict.reason}"
    if held.withdrawn:
        yield "  the model in force was withdrawn"
    if "error_ms" in figures:
        against = f", one number {figures['constant_error_ms']:.1f} ms"
        if "incumbent_error_ms" in figures:
            against = f", the incumbent {figures['incumbent_error_ms']:.1f} ms" + against
        yield f"  held-out error: {figures['error_ms']:.1f} ms{against}"
    if "choices" in figures:
        yield (
            f"  off policy, {figures['choices']:.0f} logged choices, "
            f"{figures['effective_samples']:.0f} effective: logged {figures['logged_cost_ms']:.1f} ms, "
            f"the model {figures['cost_rise_ms']:+.1f} ms "
            f"(standard error {figures['cost_rise_error_ms']:.1f})"
        )
    if "regret_ms" in figures:
        yield (
            f"  regret: the heuristic would have cost {-figures['regret_ms']:+.1f} ms (standard error "
            f"{figures['regret_error_ms']:.1f}, {figures['regret_effective_samples']:.0f} effective)"
        )
    if held.calibration:
        shown = ", ".join(f"{predicted:.0f}/{seen:.0f}" for predicted, seen in held.calibration)
        yield f"  calibration, predicted/seen ms by tenths of the predictions: {shown}"
