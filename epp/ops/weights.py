"""`epp weights`: what is in force, the operator's pins, the incumbents so far.

Owns the form of the operator's file. In Kubernetes that file is a mounted ConfigMap and read-only: then the
command that changes the ConfigMap is printed instead.
"""

from __future__ import annotations

import errno
import sys
import time
from typing import TYPE_CHECKING

import yaml

from epp.config.load import check_weights
from epp.config.plan import INCUMBENT, Split
from epp.errors import ConfigError, EppError
from epp.feeds.files import exclusive, read_file, replace_file
from epp.ops.doctor.context import Page
from epp.ops.given import add_weight_arguments, read_weight_files
from epp.ops.picker_http import answered
from epp.records.weight_files import history_lines, read_history

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from epp.ops.given import WeightFiles
    from epp.schedule.weights import WeightBook

#: A file that is mounted by itself (``subPath``) cannot be renamed over: that is "busy".
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY)
_WRITTEN = "epp_weights_written_timestamp_seconds"
#: Source [G]: its blog; appendix D of the second paper.
_WITHOUT_QUEUE = (
    "note: with queue_weight=0 the GORGO paper's router sent nearly all requests to the nearest replica: "
    "TTFT p95 was the lowest, and E2E p95 12.6 s instead of 2.5"
)
_NOTE = "# Weights pinned by the operator (`epp weights pin`); they win over the tuner's.\n"


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp weights show`."""
    parser.add_argument("--url", help="ask a running picker, e.g. http://127.0.0.1:9090")
    add_weight_arguments(parser)


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp weights pin`."""
    parser.add_argument("pins", nargs="+", metavar="NAME=VALUE", help="weights to pin")
    _add_config_map(parser)


def add_unpin_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp weights unpin`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="weights to unpin")
    parser.add_argument(
        "--all", action="store_true", help="unpin all; also begins a file anew that cannot be read"
    )
    _add_config_map(parser)


def _add_config_map(parser: argparse.ArgumentParser) -> None:
    add_weight_arguments(parser)
    parser.add_argument(
        "--config-map",
        default="gorgo-epp-overrides",
        help="ConfigMap behind a file that is read-only here (%(default)s: of a release gorgo-epp)",
    )
    parser.add_argument("--namespace", default="", help="its namespace (kubectl's own)")


def add_history_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp weights history`."""
    add_weight_arguments(parser)


def run_show(arguments: argparse.Namespace) -> int:
    """Print what a running picker has in force, or one that starts with these files; 1 for a bad file."""
    if arguments.url:
        return _show_picker(arguments.url)
    files = read_weight_files(arguments, looking=True)
    book, bounds, refused = files.book, files.tuned_bounds(), False  # by the configuration alone
    for layer, path in (("tuner", files.paths.weights), ("override", files.overrides)):
        try:
            if path is not None:
                book.update(layer, read_file(path), str(path))
        except (ConfigError, OSError) as error:
            print(f"refused: {error}", file=sys.stderr)
            refused = True
    for line in _lines(book, bounds, time.time()):
        print(line)
    return 1 if refused else 0


def run_pin(arguments: argparse.Namespace) -> int:
    """Pin weights."""
    files, pins = read_weight_files(arguments, looking=True), _pins(arguments.pins)
    code = _change(files, pins, (), arguments)
    if files.policy in ("gorgo", "gorgo-hillclimb") and pins.get("queue_weight") == 0.0:
        print(_WITHOUT_QUEUE, file=sys.stderr)
    return code


def run_unpin(arguments: argparse.Namespace) -> int:
    """Give weights back to the tuner."""
    files = read_weight_files(arguments, looking=True)
    if bool(arguments.names) == arguments.all:
        what = "weights are named beside --all" if arguments.all else "nothing to unpin"
        raise ConfigError("command line", "", what, "name weights, or give --all")
    return _change(files, {}, None if arguments.all else tuple(arguments.names), arguments)


def run_history(arguments: argparse.Namespace) -> int:
    """Print the incumbents so far."""
    paths = read_weight_files(arguments, looking=True).paths
    history = read_history(paths)
    none = f"no history: no tuner has run on {paths.weights}"
    print("\n".join([none] if history is None else history_lines(history, time.time())))
    return 0


def _show_picker(url: str) -> int:
    """Print what a running picker has in force; 1 where one of its files is not.

    Raises:
        EppError: no picker answers.
    """
    with answered(url, "metrics") as answer:
        page = Page(answer.read().decode())
    for policy in page.by(_WRITTEN, "policy"):
        print(f"policy {policy}, version {', '.join(page.by(_WRITTEN, 'version', policy=policy))}")
    arms = [arm for arm in page.by("epp_weight", "arm") if arm != INCUMBENT]
    for name, value in sorted(page.by("epp_weight", "name", arm=INCUMBENT).items()):
        sources = ", ".join(page.by("epp_weight", "source", arm=INCUMBENT, name=name))
        others = [f"  {arm}: {page.total('epp_weight', arm=arm, name=name):.6g}" for arm in arms]
        print(f"{name} = {value:.6g}  ({sources})" + "".join(others))
    files = page.by("epp_file_ok", "file")
    bad = [name for name in ("weights", "overrides") if not files.get(name, 1.0)]
    for name in bad:
        print(f"the {name} file is gone or refused; the picker's log says why", file=sys.stderr)
    return 1 if bad else 0


def _lines(book: WeightBook, bounds: Mapping[str, tuple[float, float]], now_wall_s: float) -> Iterator[str]:
    """Write a line a weight, then the trial."""
    trial = book.plan.trial
    running = trial is not None and trial.block_at(now_wall_s) is not None
    yield f"policy {book.policy}, version {book.current.version}"
    for name, value in sorted(book.current.values.items()):
        low, high = book.bounds[name]
        tuned = bounds.get(name, (low, high))
        span = f"[{low:g}, {high:g}]" + (
            "" if tuned == (low, high) else f", tuned in [{tuned[0]:g}, {tuned[1]:g}]"
        )
        other = ""
        if running and book.arm_weights.values[name] != value:
            other = f"  other arm: {book.arm_weights.values[name]:.6g}"
        yield f"{name} = {value:.6g}  ({book.current.sources[name]}; {span}){other}"
    if trial is not None and running:
        kind = f"split, {trial.share:.0%} of the sessions" if isinstance(trial, Split) else "switchback"
        left_s = trial.valid_until_wall_s - now_wall_s
        yield f"trial {trial.id}: {trial.arm} in a {kind}; ends in {left_s:.0f} s unless renewed"
    if book.plan.reason:
        yield f"reason: {book.plan.reason}"


def _pins(words: list[str]) -> dict[str, float]:
    pins = {}
    for text in words:
        name, _, value = text.partition("=")
        try:
            pins[name] = float(value)
        except ValueError:
            raise ConfigError(
                "command line", name, f"{value!r} is not a number", "write NAME=VALUE"
            ) from None
    return pins


def _change(
    files: WeightFiles,
    set_to: Mapping[str, float],
    drop: tuple[str, ...] | None,
    arguments: argparse.Namespace,
) -> int:
    """Pin and unpin; 3 when it has to be done by the command that was printed.

    Args:
        files: the files.
        set_to: weights to pin.
        drop: weights to unpin; None for all, whatever the file says, or however it is broken.
        arguments: the flags that name a ConfigMap.
    """
    overrides = files.overrides
    if overrides is None:
        raise ConfigError("command line", "overrides_file", "not set", "set it, or give --overrides FILE")
    check_weights(set_to, "command line", "pin", files.book.bounds)
    anywhere = dict.fromkeys(files.book.bounds, (0.0, 0.0))
    check_weights(dict.fromkeys(drop or (), 0.0), "command line", "unpin", anywhere)
    # Two operators at once: who came second must know what the first has pinned.
    with exclusive(overrides.with_name(f"{overrides.stem}.pins.lock")):
        before = _pinned(files, begin_anew=drop is None)
        after = {**before, **set_to}
        for name in before if drop is None else drop:
            if after.pop(name, None) is None:
                print(f"{name} was not pinned")
        plain = {"version": 1, "policy": files.policy, "weights": after}
        content = _NOTE + yaml.safe_dump(plain, sort_keys=False)
        try:
            replace_file(overrides, content.encode())
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            print(
                f"{overrides} is read-only here: {error.strerror}. Where kubectl may, say (--config-map "
                f"and --namespace name the ConfigMap behind it):\n\n{_kubectl(overrides, content, arguments)}"
            )
            return 3
    pinned = ", ".join(f"{name}={value:g}" for name, value in sorted(after.items())) or "nothing"
    print(f"pinned: {pinned}; pickers follow within a second")
    return 0


def _pinned(files: WeightFiles, *, begin_anew: bool) -> Mapping[str, float]:
    try:
        return files.read_pins()
    except ConfigError as error:
        if not begin_anew:
            raise EppError(f"{error}; `epp weights unpin --all` begins the file anew") from error
        print(f"{error}; the file is begun anew")
        return {}


def _kubectl(overrides: Path, content: str, arguments: argparse.Namespace) -> str:
    """Write the command that does the same to the ConfigMap; other keys of it stay."""
    namespace = f" --namespace {arguments.namespace}" if arguments.namespace else ""
    patch = yaml.safe_dump({"data": {overrides.name: content}}, default_style="|")
    return (
        f"kubectl patch configmap {arguments.config_map}{namespace} --type merge "
        f"--patch-file /dev/stdin <<'EOF'\n{patch}EOF"
    )
