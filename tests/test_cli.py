"""The command line as a whole: what stops it, and what it cannot read or write."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epp.cli import COMMANDS, Command, build_parser, main

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ctrl-C at the moment at which the command's module is looked for.
INTERRUPTED = """
import importlib.abc, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "epp_lab.demo.command":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from epp.cli import main
sys.exit(main(["demo"]))
"""


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word() -> None:
    done = subprocess.run((sys.executable, "-c", INTERRUPTED), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


#: Ask a shell for what completes the words before the cursor.
ASK = {
    "bash": (
        "source ./script; COMP_WORDS=({words} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "_shtab_epp epp '' ''; echo ${{COMPREPLY[@]}}"
    ),
    "fish": "source ./script; complete -C '{words} ' | string split -f1 \\t",
}


@pytest.mark.parametrize("shell", ASK)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("epp records", {"show", "filter", "follow", "verify", "ttca"}),
        ("epp serve --log-format", {"text", "json"}),
        ("epp serve --config", {"epp.yaml"}),
    ],
)
def test_a_shell_completes_commands_values_and_files(
    tmp_path: Path, completions: dict[str, str], shell: str, words: str, wanted: set[str]
) -> None:
    program = shutil.which(shell) or pytest.skip(f"no {shell} here")
    (tmp_path / "script").write_text(completions[shell])
    (tmp_path / "epp.yaml").touch()
    done = subprocess.run(
        (program, "-c", ASK[shell].format(words=words)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert wanted <= set(done.stdout.split()) <= wanted | {"script"}


@pytest.fixture(scope="module")
def completions() -> dict[str, str]:
    command = (sys.executable, "-m", "epp", "completion")
    return {
        shell: subprocess.run((*command, shell), capture_output=True, text=True, check=True).stdout
        for shell in ("bash", "zsh", "fish")
    }


def test_zsh_gets_a_script_of_its_own(completions: dict[str, str]) -> None:
    assert completions["zsh"].startswith("#compdef epp")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("sreve", "serve"),
        ("record show", "records"),
        ("records shwo", "show"),
        ("serve --confg epp.yaml", "--config"),
        ("envoy render --config epp.yaml --varient original-dst", "--variant"),
        ("serve --log-format jsn", "json"),
    ],
)
def test_a_misspelt_command_flag_or_value_is_answered_by_the_nearest(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant!r}?\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_the_help_of_a_command_ends_with_examples_that_it_takes(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.words, "--help"])
    text, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    lines = examples.splitlines()
    assert text
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "epp"
        assert build_parser(command.words).parse_args(words).run is command


def test_the_help_of_serve_shows_its_own_flags_before_those_of_llm_d(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    own, _, llm_d = capsys.readouterr().out.partition("llm-d's flags:\n")
    assert "--workers" in own
    assert "--pool-name X" in llm_d
    assert "--pool-name X" not in own


LONG = "n" * 300
LIST = (sys.executable, "-m", "epp", "lab", "compare", "--list")


@pytest.mark.parametrize(
    "words",
    [
        ["records", "show", LONG],
        ["explain", "--records", LONG],
        ["lab", "compare", "--trace", LONG],
        ["lab", "trace", LONG],
    ],
)
def test_what_no_file_can_be_is_told_in_a_line(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("epp: ")
    assert LONG in line
    assert "File name too long" in line


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """With Python's output held back or not: what cannot be written is found out at the end or at once."""
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_so_is_a_full_disk(environment: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            LIST, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "epp: No space left on device\n")


def test_a_reader_that_leaves_ends_a_command_without_a_word(environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        LIST, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in {1, 141}  # tables' library has a status of its own for this


REPLAY = ("lab", "compare", "--workload", "demo", "--seconds", "3", "--warmup", "0", "--seeds", "1")


def replayed(out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Replay a little, the results going to a folder."""
    command = (sys.executable, "-m", "epp", *REPLAY, "--policy", "random", "--out", str(out))
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


def test_results_are_written_for_a_reader_who_has_left(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = replayed(tmp_path, stdout=writer)
    os.close(writer)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert (tmp_path / "results.json").stat().st_size > 0
    assert (tmp_path / "report.html").stat().st_size > 0


def test_a_terminal_of_few_characters_gets_others_for_those_it_lacks(tmp_path: Path) -> None:
    few = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = replayed(tmp_path / "caf\u00e9", env=few, stdout=subprocess.PIPE)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "caf?/results.json" in done.stdout.replace("\n", "")
