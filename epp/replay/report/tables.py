"""The report's tables: figures of every policy, tuned weights, knees."""

from __future__ import annotations

from html import escape
from math import exp, isfinite
from typing import TYPE_CHECKING

from epp.replay.report.svg import ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.replay.document import CellEntry, Document, PolicyEntry


def figures_table(cell: CellEntry) -> str:
    """All figures, best E2E p95 first."""
    heads = ["policy"]
    heads += [f"{name} {q}" for name in ("TTFT", "E2E", "ITL") for q in ("p50", "p95", "p99")]
    heads += ["believed hits", "true hits", "hottest replica", "slip p95", "failed", "saturated"]
    rows = [_row(p) for p in sorted(cell.policies, key=lambda p: p.value("e2e_ms", "p95"))]
    return _table(heads, rows)


def _row(policy: PolicyEntry) -> str:
    cells = [escape(policy.name)]
    for metric in ("ttft_ms", "e2e_ms", "itl_ms"):
        cells += [ms(policy.value(metric, q)) for q in ("p50", "p95", "p99")]
    cells += [_share(policy.believed_hit_share), _share(policy.true_hit_share)]
    share = policy.hottest_share if isfinite(policy.hottest_share) else 0.0
    meter = f'<span class="meter"><i style="width:{100 * share:.0f}%"></i></span>'
    cells += [f"{_share(policy.hottest_share)}{meter}", ms(policy.slip_ms["p95"])]
    cells.append(f'<span class="bad">{policy.errors}</span>' if policy.errors else "0")
    seeds = len(policy.per_seed)
    saturated = f"{policy.saturated_seeds} of {seeds}" if seeds > 1 else "yes"
    cells.append(f'<span class="bad">{saturated}</span>' if policy.saturated_seeds else "no")
    return f'<tr class="{policy.role}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def tuning_table(cell: CellEntry) -> str:
    """Weights that tuning found."""
    rows = []
    for row in cell.tuning:
        weights = ", ".join(f"{name} {value:.4g}" for name, value in row["weights"].items())
        gain = 100.0 * (1.0 - exp(row["objective"] - row["objective_at_defaults"]))
        cells = [escape(row["policy"]), str(row["tried"]), f"{gain:.1f} %", escape(weights)]
        rows.append(f"<tr>{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    return _table(["policy", "weights tried", "gain on the tuning load", "weights"], rows)


def knees_table(document: Document) -> str:
    """E2E p95 at every load, and the knee."""
    sweep = document.sweep
    if sweep is None:
        return ""
    heads = ["policy", *(f"{load / 1000:.1f}k tok/s" for load in sweep.loads), "keeps up to"]
    rows = []
    for policy in sorted(document.cells[0].policies, key=lambda p: -(sweep.knees[p.name] or 0.0)):
        cells = [escape(policy.name)]
        for cell in document.cells:
            entry = cell.policy(policy.name)
            text = ms(entry.value("e2e_ms", "p95"))
            late = 2 * entry.saturated_seeds > len(entry.per_seed)
            cells.append(f'<span class="bad">{text}</span>' if late else text)
        knee = sweep.knees[policy.name]
        cells.append("-" if knee is None else f"{knee / 1000:.1f}k")
        rows.append(f'<tr class="{policy.role}">{"".join(f"<td>{c}</td>" for c in cells)}</tr>')
    return _table(heads, rows)


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if isfinite(value) else "-"
