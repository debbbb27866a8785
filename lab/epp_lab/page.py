"""Reports as HTML pages of their own: no script, nothing fetched; values of charts show under the pointer."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1.5em 0; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding-bottom: .4em }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #8884; white-space: pre }
th:first-child, td:first-child { text-align: left }
tr:hover { background: #8882 }
tr.marked { font-weight: 600 }
svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; padding: 6px }
footer, code { color: #888; font-size: 13px }
"""


def page(title: str, made: Mapping[str, str], *parts: str) -> str:
    """Write a page.

    Args:
        title: its heading.
        made: where it comes from, as `epp_lab.origin` says it.
        parts: HTML, such as that of `html` and of charts.
    """
    said = f"epp {made['version']}, commit {made['commit']}, {made['date']}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + f"\n<footer>{escape(said)}<br><code>{escape(made['command'])}</code></footer></html>\n"
    )


def html(part: RenderableType) -> str:
    """Return what is printed on a terminal as HTML: a table as one, text as a paragraph."""
    if not isinstance(part, Table):
        return f'<p style="white-space: pre-line">{_text(part)}</p>'
    rows = zip(*(column.cells for column in part.columns), strict=True)
    lines = []
    for row, cells in zip(part.rows, rows, strict=True):
        mark = " class=marked" if row.style in ("bold", "green") else ""
        lines.append(f"<tr{mark}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{_text(column.header)}</th>" for column in part.columns)
    caption = f"<caption>{_text(part.title)}</caption>" if part.title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _text(cell: RenderableType) -> str:
    return escape(cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain)
