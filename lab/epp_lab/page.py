"""Reports as HTML pages of their own: nothing is fetched; values of charts show under the pointer."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType


def page(title: str, made: Mapping[str, str], *parts: str, verdict: Iterable[str] = ()) -> str:
    """Write a page, in the live page's colors.

    Args:
        title: its heading.
        made: where it comes from, as `epp_lab.origin` says it.
        parts: HTML, such as that of `html` and of charts.
        verdict: what it comes to, in sentences.
    """
    here = files("epp_lab")
    vendored = here / "vendor" / "uplot"
    colors, _, _ = (files("epp") / "console" / "ui.css").read_text().partition("}")
    style = f"{(vendored / 'uPlot.min.css').read_text()}\n{colors}}}\n{(here / 'page.css').read_text()}"
    script = (
        f"/*\n{(vendored / 'LICENSE').read_text()}*/\n{(vendored / 'uPlot.iife.min.js').read_text()}\n"
        f"{(here / 'charts.js').read_text()}"
    )
    said = f"epp {made['version']}, commit {made['commit']}, {made['date']}"
    head = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style>\n"
        f"<header><h1>{escape(title)}</h1></header>\n<main>\n"
        + (f'<div class="verdict">{head}</div>\n' if head else "")
        + "\n".join(parts)
        + f"\n</main>\n<footer>{escape(said)}<br><code>{escape(made['command'])}</code></footer>"
        + f"\n<script>{script}</script></html>\n"
    )


def html(part: RenderableType) -> str:
    """Return what is printed on a terminal as HTML: a table as one, text as a paragraph."""
    if not isinstance(part, Table):
        return f"<p>{_text(part)}</p>"
    rows = zip(*(column.cells for column in part.columns), strict=True)
    lines = []
    for row, cells in zip(part.rows, rows, strict=True):
        mark = " class=marked" if row.style in ("bold", "green") else ""
        lines.append(f"<tr{mark}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{_text(column.header)}</th>" for column in part.columns)
    caption = f"<h3>{_text(part.title)}</h3>" if part.title else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<section class="wide">{caption}{table}</section>'


def _text(cell: RenderableType) -> str:
    return escape(cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain)
