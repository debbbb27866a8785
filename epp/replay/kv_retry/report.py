"""The tables of a comparison of retries: for a terminal and for a page of its own.

Owns the layout. The page is self-contained: no script, nothing fetched from anywhere.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.table import Table

from epp.replay.report.style import STYLE

if TYPE_CHECKING:
    from epp.replay.kv_retry.document import PolicyCell, Retries, RetryCell

HEADINGS = (
    "policy",
    "TTCA s",
    "per correct s",
    "success",
    "at once",
    "attempts",
    "hits",
    "gain over it",
    "gain per correct",
    "success more",
)


def tables(found: Retries) -> list[Table]:
    """A table for each length over all languages."""
    made = []
    for cell in found.cells:
        if cell.language != "all":
            continue
        table = Table(title=f"{found.workload}, {_title(found, cell)}", title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
        for entry in cell.policies:
            style = "bold" if entry.policy == found.candidate else None
            table.add_row(*_row(entry, found.candidate), style=style)
        made.append(table)
    return made


def render(found: Retries) -> str:
    """The page."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.conclusion)
    body = [
        f"<h1>{escape(found.candidate)}: time to the first correct answer</h1>",
        f'<p class="soft">{escape(_about(found))}</p>',
        f'<div class="card says"><h3>What may be said</h3><ul>{said}</ul></div>',
    ]
    body += [_card(found, cell) for cell in sorted(found.cells, key=lambda cell: cell.language != "all")]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Replay: {escape(found.workload)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _about(found: Retries) -> str:
    return (
        f"{found.workload}: key-value lookups asked until they are right, eight at a time, at most ten"
        f" attempts; five models with accuracies drawn {len(found.draws)} times. TTCA: mean time to the first"
        " correct answer, of questions that got none the time until they were given up, which flatters who"
        " gives up early. Per correct: all time spent over right answers, which does not. Gain: of"
        f" {found.candidate} over the policy, median over draws and 5 to 95 %."
    )


def _card(found: Retries, cell: RetryCell) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    rows = []
    for entry in cell.policies:
        cls = "candidate" if entry.policy == found.candidate else "baseline"
        cells = "".join(f"<td>{escape(text)}</td>" for text in _row(entry, found.candidate))
        rows.append(f'<tr class="{cls}">{cells}</tr>')
    return (
        f'<div class="card"><h3>{escape(_title(found, cell))}</h3><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _title(found: Retries, cell: RetryCell) -> str:
    languages = "all languages" if cell.language == "all" else cell.language
    return f"{cell.prompt_tokens // 1024}K, {languages}, {len(found.draws)} draws"


def _row(entry: PolicyCell, candidate: str) -> list[str]:
    gain = per_correct = more = "-"
    if entry.policy != candidate:
        gain, per_correct = (
            f"{gains[3]:+.0%} [{gains[1]:+.0%}, {gains[5]:+.0%}]"
            for gains in (entry.gain, entry.gain_per_correct)
        )
        more = f"{entry.success_more[3]:+.1%} [{entry.success_more[1]:+.1%}, {entry.success_more[5]:+.1%}]"
    return [
        entry.policy,
        f"{entry.ttca_ms / 1e3:.1f}",
        f"{entry.per_correct_ms / 1e3:.1f}",
        f"{entry.success:.1%}",
        f"{entry.first:.0%}",
        f"{entry.attempts:.1f}, at most {entry.most_attempts}",
        f"{entry.hit_share:.0%}",
        gain,
        per_correct,
        more,
    ]
