"""From the command's flags to cells.

Owns what each flag means for a load. Must not know how cells are run.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.lab.compare.plan import Cell, Shape, Source
from epp.lab.workloads.registry import workload_named

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

#: Factors on a load's own pace: with ART-Chat's first window some 9,000 to 70,000 input tokens per second.
SWEEP_LOADS = (0.33, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
SHAPES = ("concurrent", "poisson", "throughput", "sweep")
#: With everything sent at once somebody has to hold requests back: requests in flight.
THROUGHPUT_IN_FLIGHT = 512


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """The cells that the flags ask for; of a GuideLLM sweep the one that it starts from.

    Raises:
        EppError: unknown workload or shape.
    """
    shape = None if is_sweep(arguments.shape) else parse_shape(arguments.shape)
    names = [name.strip() for name in (arguments.workload or "").split(",") if name.strip()]
    cells = [_of_workload(name, arguments) for name in names] or [_of_trace(arguments)]
    return [shaped(_limited(cell, arguments), shape) for cell in cells]


def _of_workload(name: str, arguments: argparse.Namespace) -> Cell:
    workload = workload_named(name)
    source = Source(workload=name, until_s=arguments.seconds)
    tuning = Source(workload=workload.tuning or name, until_s=arguments.seconds)
    return Cell(
        name=name,
        source=source,
        load=arguments.load,
        time_scale=workload.time_scale,
        max_in_flight=workload.max_in_flight,
        tuning=tuning,
    )


def _of_trace(arguments: argparse.Namespace) -> Cell:
    source = Source(
        trace=str(arguments.trace),
        scale=arguments.scale,
        max_prompt_tokens=arguments.max_prompt_tokens,
        until_s=arguments.seconds,
        part="judge" if arguments.tune else "all",
    )
    name = Path(arguments.trace).name.split(".")[0]
    return Cell(name=name, source=source, load=arguments.load, tuning=replace(source, part="tune"))


def _limited(cell: Cell, arguments: argparse.Namespace) -> Cell:
    if arguments.max_in_flight is not None:
        cell = replace(cell, max_in_flight=arguments.max_in_flight or None)
    return replace(cell, closed_loop=not arguments.open_loop, warmup_s=arguments.warmup)


def shaped(cell: Cell, shape: Shape | None) -> Cell:
    """The cell at another pace; shapes set send times themselves, so the cell's own time scale goes."""
    if shape is None:
        return cell
    limit = cell.max_in_flight
    if shape.kind == "throughput":
        limit = limit or THROUGHPUT_IN_FLIGHT
    elif shape.kind == "concurrent":
        limit = None  # its streams are the limit
    tuning = None if cell.tuning is None else replace(cell.tuning, shape=shape)
    return replace(
        cell,
        name=f"{cell.name}, {shape.label}",
        source=replace(cell.source, shape=shape),
        tuning=tuning,
        time_scale=1.0,
        max_in_flight=limit,
        closed_loop=True,
    )


def is_sweep(text: str | None) -> bool:
    """Whether a shape is GuideLLM's sweep, with or without steps."""
    return (text or "").partition(":")[0] == "sweep"


def parse_shape(text: str | None) -> Shape | None:
    """``concurrent:16``, ``poisson:4.5``, ``throughput``.

    Raises:
        EppError: another shape, or a value that makes no sense.
    """
    if not text:
        return None
    kind, _, value = text.partition(":")
    if kind not in SHAPES:
        raise EppError(f"unknown shape {kind!r}; one of: {', '.join(SHAPES)}")
    if kind == "throughput":
        return Shape(kind)
    try:
        number = float(value)
    except ValueError as error:
        raise EppError(f"--shape {kind} needs a number: {kind}:8") from error
    if not 0 < number < inf or (kind == "concurrent" and number != int(number)):
        raise EppError(
            f"--shape {text}: not a number of {'streams' if kind == 'concurrent' else 'requests/s'}"
        )
    return Shape(kind, number)


def sweep_cells(cells: Sequence[Cell], loads: str | None) -> list[Cell]:
    """One cell per load, rising.

    Raises:
        EppError: more than one workload, or loads that are not positive numbers.
    """
    if len(cells) != 1:
        raise EppError("--sweep takes one workload")
    try:
        factors = sorted({float(part) for part in loads.split(",")} if loads else SWEEP_LOADS)
    except ValueError as error:
        raise EppError(f"--loads {loads}: not numbers joined by commas") from error
    if not all(0 < factor < inf for factor in factors):
        raise EppError(f"--loads {loads}: a load is a number above 0")
    cell = cells[0]
    return [replace(cell, name=f"{cell.name} x {factor:g}", load=cell.load * factor) for factor in factors]
