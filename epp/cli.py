"""The command line: which commands there are and which module runs each. Thin; modules load when used."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

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
        examples: one a line.
    """

    words: tuple[str, ...]
    module: str
    help: str
    examples: str = ""

    def function(self, name: str) -> Any:
        """Import one of the command's two functions."""
        module, _, word = self.module.partition(":")
        if word:
            name = {"add_arguments": f"add_{word}_arguments", "run": f"run_{word}"}[name]
        return getattr(import_module(module), name)


#: Words, module, help, examples.
_COMMANDS = {
    "up": (
        "epp.ops.up.command",
        "run Envoy and the picker before engines, with no file to write",
        """\
epp up http://127.0.0.1:8001 http://127.0.0.1:8002
epp up http://10.0.0.5:8000 --listen 0.0.0.0:8080 --key-env ENGINE_KEY
epp up http://127.0.0.1:8001 --write here""",
    ),
    "serve": (
        "epp.server.command",
        "run the endpoint picker",
        """\
epp serve --config epp.yaml
epp serve --config epp.yaml --workers 4 --log-format json
epp serve --pool-name vllm --pool-namespace serving --config-file plugins.yaml""",
    ),
    "explain": (
        "epp.ops.explain",
        "print the table of terms that decided a request",
        """\
epp explain --url http://127.0.0.1:9090
epp explain 7f3a --records records
epp explain 7f3a --records us --records eu --trace --out trace.json""",
    ),
    "top": (
        "epp.ops.top",
        "the fleet, decisions and weights of a running picker, live",
        """\
epp top --url http://127.0.0.1:9090
epp top --ask least-request""",
    ),
    "config check": (
        "epp.ops.config_check",
        "all errors of a configuration and its files",
        """\
epp config check epp.yaml
epp config check llm-d-values.yaml --json""",
    ),
    "migrate llm-d": (
        "epp.ops.migrate",
        "values of llm-d's charts as values of ours",
        "epp migrate llm-d base.values.yaml guide.values.yaml",
    ),
    "feedback": (
        "epp.ops.feedback",
        "tell a picker whether an answer was right",
        """\
epp feedback 7f3a92 --correct
epp feedback 7f3a92 --wrong --evaluator unit-tests --url http://127.0.0.1:9090""",
    ),
    "doctor": (
        "epp.ops.doctor.command",
        "check a running deployment, and say what to do",
        """\
epp doctor --config epp.yaml --envoy-admin http://127.0.0.1:9901
epp doctor --config epp.yaml --no-requests --json""",
    ),
    "completion": (
        "epp.cli:completion",
        "a shell's script that completes commands and flags",
        "epp completion bash",
    ),
    "records show": (
        "epp.ops.records:show",
        "recorded requests as a table",
        "epp records show records --since 10m --cause failed-answer",
    ),
    "records filter": (
        "epp.ops.records:filter",
        "the lines of the requests that are wanted",
        "epp records filter records --endpoint 10.0.0.5:8000 --since 1h",
    ),
    "records follow": (
        "epp.ops.records:follow",
        "decisions and outcomes as they are written",
        "epp records follow records --model llama",
    ),
    "records verify": (
        "epp.ops.records:verify",
        "prove that recorded decisions run again",
        "epp records verify records --since 1h",
    ),
    "records ttca": (
        "epp.ops.records:ttca",
        "time to the first correct answer, by who answered",
        "epp records ttca records-us records-eu",
    ),
    "weights show": (
        "epp.ops.weights:show",
        "every weight and where it comes from, by the files or of a running picker (--url)",
        """\
epp weights show --config epp.yaml
epp weights show --url http://127.0.0.1:9090""",
    ),
    "weights pin": (
        "epp.ops.weights:pin",
        "fix weights by hand; they win over the tuner's",
        "epp weights pin waiting_weight=2 --config epp.yaml",
    ),
    "weights unpin": (
        "epp.ops.weights:unpin",
        "give weights back to the tuner",
        """\
epp weights unpin waiting_weight --config epp.yaml
epp weights unpin --all --config epp.yaml""",
    ),
    "weights history": (
        "epp.ops.weights:history",
        "the weights so far",
        "epp weights history --config epp.yaml",
    ),
    "envoy render": (
        "epp.envoy.command",
        "write the Envoy configuration for a picker's configuration",
        """\
epp envoy render --config epp.yaml --out envoy.yaml
epp envoy render --config epp.yaml --fallback-picker 10.0.0.2:9002 --out envoy.yaml
epp envoy render --config epp.yaml --tier relay:eu --listen 0.0.0.0:8443 --out relay.yaml""",
    ),
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
#: Of the program: a first run, why a request went where it went, what is wrong.
_EXAMPLES = """\
epp up http://127.0.0.1:8001 http://127.0.0.1:8002
epp explain --url http://127.0.0.1:9090
epp doctor --config epp.yaml
epp COMMAND --help"""


class _Parser(argparse.ArgumentParser):
    """A parser that shows examples, and names what was meant by a command or flag that it does not know."""

    def error(self, message: str) -> NoReturn:
        """Stop with the message and the nearest words that are known."""
        known = [
            word for each in self._actions for word in (*each.option_strings, *map(str, each.choices or ()))
        ]
        for word in re.findall(r"(?<=choice: ')[^']+|(?<= )--?[\w-]+", message):
            near = difflib.get_close_matches(word, known, n=1)
            if near and near[0] != word:
                message += f"; did you mean {near[0]!r}?"
        super().error(message)


def _with_examples(words: str, examples: str, more: str = "") -> dict[str, Any]:
    """Describe a parser whose help ends with examples."""
    lines = "".join(f"  {line}\n" for line in examples.splitlines())
    return {
        "description": words,
        "epilog": f"examples:\n{lines}{more}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def build_parser(only: tuple[str, ...] | None = None) -> argparse.ArgumentParser:
    """The parser; arguments of a command are added only for the one that is asked for (imports are slow)."""
    more = f"\n{', '.join(map(' '.join, MISSING))}: {_INSTALL}" if MISSING else ""
    about = _with_examples("An endpoint picker for LLM inference.", _EXAMPLES, more)
    parser = _Parser(prog="epp", **about)
    parser.add_argument("--version", action="version", version=f"epp {__version__}")
    top = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    groups = {}
    for command in COMMANDS:
        *group, word = command.words
        if group and group[0] not in groups:
            theirs = [each.examples for each in COMMANDS if each.words[:-1] == command.words[:-1]]
            told = GROUPS[group[0]]
            inner = top.add_parser(group[0], help=told, **_with_examples(told, "\n".join(theirs)))
            groups[group[0]] = inner.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
        told = command.help
        parsers = groups[group[0]] if group else top
        leaf = parsers.add_parser(word, help=told, **_with_examples(told, command.examples))
        leaf.set_defaults(run=command, leaf=leaf)
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
    except ConfigError as error:
        from epp.feeds.files import placed  # noqa: PLC0415  # only once there is an error

        for line in placed(error.errors):
            print(f"epp: {line}", file=sys.stderr)
        return 2
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
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
    if only == ("serve",):
        from epp.llmd.flags import as_pflag  # noqa: PLC0415  # other commands' words are argparse's

        place = words.index("serve") + 1
        words = [*words[:place], *as_pflag(words[place:])]
    arguments, unknown = build_parser(only).parse_known_args(words)
    if unknown:
        arguments.leaf.error(f"unrecognized arguments: {' '.join(unknown)}")
    status: int = arguments.run.function("run")(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
