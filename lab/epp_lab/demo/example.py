"""What every demo begins and ends with: its arguments, a folder for its output, an end in order."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp_lab.origin import origin
from epp_lab.page import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from epp_lab.compare.load import RequestResult

_MARKER = ".epp-demo"


def example_parser(name: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return the parser of ``python -m epp_lab.demo.NAME``, described by its module's first line."""
    return argparse.ArgumentParser(
        prog=f"epp_lab.demo.{name}", description=(documentation or "").splitlines()[0]
    )


def run_example(
    parser: argparse.ArgumentParser,
    show: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
    *,
    out: str = "demo-out",
) -> int:
    """Run a demo in the folder of its ``--out``; its exit status."""
    parser.add_argument("--out", type=Path, default=Path(out), help="folder for output (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        with output(arguments.out):
            return show(arguments)
    except KeyboardInterrupt:
        return 130
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def output(folder: Path) -> Iterator[None]:
    """Make a folder, with nothing of an earlier demo in it; SIGTERM ends what runs inside as Ctrl-C does.

    Raises:
        EppError: it holds something else, or cannot be written.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    marker = folder / _MARKER
    try:
        if folder.exists() and not marker.exists() and any(folder.iterdir()):
            raise EppError(f"{folder} is not the output of a demo: empty it, or choose another with --out")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise EppError(f"{folder} cannot be the folder for output: {error.strerror}") from error
    yield


def write_report(
    console: Console, out: Path, title: str, parts: Iterable[str], verdict: Iterable[str]
) -> None:
    """Write a demo's page, and print where its output is and what may be asked of it."""
    file = out / "report.html"
    file.write_text(page(title, origin(), *parts, verdict=verdict), encoding="utf-8")
    records = next(out.rglob("records"))
    console.print(
        f"\nOutput in {out}/: configuration, logs, records, results.\n"
        f"Why did a request go where it went?  epp explain --records {records}\n"
        f"Would it go there again?  epp records verify {records}\n"
        f"All of it on one page: {file.absolute().as_uri()}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def exit_status(runs: Mapping[str, Sequence[RequestResult]]) -> int:
    """Report policies under which every request failed, as nothing was shown of them; 1 if there are any."""
    failed = [policy for policy, results in runs.items() if not any(result.ok for result in results)]
    for policy in failed:
        last = runs[policy][-1].error if runs[policy] else "the load is empty"
        print(f"epp: {policy}: no request was answered: {last}", file=sys.stderr)
    return 1 if failed else 0
