"""The command line: which commands there are and which module runs each. Thin; modules load when used."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from epp import __version__
from epp.errors import ConfigError, EppError


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        words: what is typed.
        module: the module with ``add_arguments`` and ``run``; of ``module:show`` they are
            ``add_show_arguments`` and ``run_show``.
        help: one line.
    """

    words: tuple[str, ...]
    module: str
    help: str

    def function(self, name: str) -> Any:
        """Import one of the command's two functions."""
        module, _, word = self.module.partition(":")
        if word:
            name = {"add_arguments": f"add_{word}_arguments", "run": f"run_{word}"}[name]
        return getattr(import_module(module), name)


#: Words, module, help.
_COMMANDS = {
    "up": ("epp.ops.up.command", "run Envoy and the picker before engines, with no file to write"),
    "serve": ("epp.server.command", "run the endpoint picker"),
    "explain": ("epp.ops.explain", "print the table of terms that decided a request"),
    "top": ("epp.ops.top", "the fleet, decisions and weights of a running picker, live"),
    "config check": ("epp.ops.config_check", "all errors of a configuration and its files"),
    "migrate llm-d": ("epp.ops.migrate", "values of llm-d's charts as values of ours"),
    "feedback": ("epp.ops.feedback", "tell a picker whether an answer was right"),
    "doctor": ("epp.ops.doctor.command", "check a running deployment, and say what to do"),
    "completion": ("epp.cli:completion", "a shell's script that completes commands and flags"),
    "records show": ("epp.ops.records:show", "recorded requests as a table"),
    "records filter": ("epp.ops.records:filter", "the lines of the requests that are wanted"),
    "records follow": ("epp.ops.records:follow", "decisions and outcomes as they are written"),
    "records verify": ("epp.ops.records:verify", "prove that recorded decisions run again"),
    "records ttca": ("epp.ops.records:ttca", "time to the first correct answer, by who answered"),
    "weights show": (
        "epp.ops.weights:show",
        "every weight and where it comes from, by the files or of a running picker (--url)",
    ),
    "weights pin": ("epp.ops.weights:pin", "fix weights by hand; they win over the tuner's"),
    "weights unpin": ("epp.ops.weights:unpin", "give weights back to the tuner"),
    "weights history": ("epp.ops.weights:history", "the weights so far"),
    "envoy render": ("epp.envoy.command", "write the Envoy configuration for a picker's configuration"),
}
#: What other packages add: modules with tables like these two.
_ADDED = [point.load() for point in entry_points(group="epp.commands")]
COMMANDS = [
    Command(tuple(words.split()), *told)
    for table in (_COMMANDS, *(module.COMMANDS for module in _ADDED))
    for words, told in table.items()
]
GROUPS = {
    "migrate": "come from another picker",
    "config": "the picker's configuration",
    "records": "what was decided, on file",
    "weights": "the policy's weights: in force, pinned, earlier ones",
    "envoy": "Envoy configuration",
}
for _module in _ADDED:
    GROUPS |= _module.GROUPS
_LAB = (("tune",), ("learn",), ("capability",), ("lab",), ("bench",), ("demo",), ("weights", "rollback"))
#: Commands that are not installed.
MISSING = [words for words in _LAB if all(words != each.words[: len(words)] for each in COMMANDS)]
_INSTALL = "pip install gorgo-epp-lab"


def build_parser(only: tuple[str, ...] | None = None) -> argparse.ArgumentParser:
    """The parser; arguments of a command are added only for the one that is asked for (imports are slow)."""
    more = f"{', '.join(map(' '.join, MISSING))}: {_INSTALL}" if MISSING else None
    parser = argparse.ArgumentParser(
        prog="epp", description="An endpoint picker for LLM inference.", epilog=more
    )
    parser.add_argument("--version", action="version", version=f"epp {__version__}")
    top = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    groups = {}
    for command in COMMANDS:
        if len(command.words) == 1:
            leaf = top.add_parser(command.words[0], help=command.help, description=command.help)
        else:
            group, word = command.words
            if group not in groups:
                inner = top.add_parser(group, help=GROUPS[group], description=GROUPS[group])
                groups[group] = inner.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
            leaf = groups[group].add_parser(word, help=command.help, description=command.help)
        leaf.set_defaults(run=command)
        if only is None or only == command.words:
            command.function("add_arguments")(leaf)
    return parser


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `epp completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="e.g. source <(epp completion bash)")


def run_completion(arguments: argparse.Namespace) -> int:
    """Print the script of a shell."""
    import shtab  # noqa: PLC0415  # only where it is asked for

    parser = build_parser()
    parsers = [parser]
    for each in parsers:
        for action in each._actions:  # noqa: SLF001  # argparse has no other way to them
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                parsers += action.choices.values()
            elif action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run a command; errors meant for people, and files', are a line each on standard error and status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character is no reason to stop
    try:
        status = run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except EppError as error:
        for each in error.errors if isinstance(error, ConfigError) else (error,):
            print(f"epp: {each}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        # Others than files' and full disks' say nothing without the traceback.
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"epp: {f'{error.filename}: ' if error.filename else ''}{error.strerror}", file=sys.stderr)
        return 2
    return status


def _drop_output() -> None:
    """Give up output that cannot be written: at the exit Python would try again, and say that it cannot."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def run(words: list[str]) -> int:
    """Run a command; its errors are the caller's.

    Raises:
        EppError: the command's, for people.
    """
    plain = tuple(word for word in words[:2] if not word.startswith("-"))
    if missing := next((each for each in MISSING if plain[: len(each)] == each), ()):
        raise EppError(f"`epp {' '.join(missing)}` comes with another package: {_INSTALL}")
    only = next((c.words for c in COMMANDS if plain[: len(c.words)] == c.words), ())
    arguments = build_parser(only).parse_args(words)
    status: int = arguments.run.function("run")(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
