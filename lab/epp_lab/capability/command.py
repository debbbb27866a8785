"""`epp capability fit`: checked answers to the capability file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from epp.config.capability import dump_capability
from epp_lab.capability.fit import fit
from epp_lab.capability.results import read_rows
from epp_lab.sidecar.process import Files

if TYPE_CHECKING:
    import argparse

    from epp.config.capability import CapabilityFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "results",
        type=Path,
        help="checked answers as JSON Lines, or a folder of flight records with feedback",
    )
    parser.add_argument("--out", type=Path, default=Path("capability.yaml"), help="file (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Fit, print, write.

    Raises:
        EppError: the answers cannot be used, or are too few.
        OSError: they cannot be read, or the file cannot be written.
    """
    parsed = fit(read_rows(arguments.results), arguments.seed)
    out: Path = arguments.out
    Files().replace(out, dump_capability(parsed))  # a picker that watches it sees the old or the new one
    _print(parsed)
    print(f"Written: {out}")
    return 0


def _print(parsed: CapabilityFile) -> None:
    console = Console()
    for model, entries in parsed.models.items():
        table = Table(title=model, title_justify="left")
        for title in ("language", "task", "length", "right", "95 % interval", "answers"):
            table.add_column(title, justify="left" if title in ("language", "task") else "right")
        for entry in entries:
            table.add_row(
                entry.language,
                entry.task or "-",
                f"{entry.bucket_tokens // 1024}K",
                f"{entry.success:.0%}",
                f"{entry.low:.0%} to {entry.high:.0%}",
                str(entry.rows),
            )
        console.print(table)
    print(f"Ease of the questions spreads by {parsed.ease_spread:g} in log odds; at 0 failures say nothing")
    report = parsed.report
    if report is not None and report.log_loss is not None:
        console.print(
            f"{report.test_rows} held-out answers: log loss {report.log_loss:g}"
            f" (a constant per model: {report.base_log_loss:g}), Brier {report.brier:g},"
            f" calibration error {report.calibration_error:.1%}",
            highlight=False,
        )
