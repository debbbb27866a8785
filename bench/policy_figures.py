"""The figures of docs/policies.md, from the ``results.json`` of `epp replay`.

    epp replay --workload art-chat --policy all --seeds 20 --fleet paper-exact --out report
    python -m bench.policy_figures exact report/results.json

Writes the table between the page's markers of that name. Absolute figures are geometric means over seeds; the
others are paired ratios to the candidate with 95 % intervals, as `epp.replay.evidence` makes them.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.replay.document import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.replay.document import CellEntry, Comparison

PAGE = Path(__file__).parent.parent / "docs" / "policies.md"


def table(document: Document) -> list[str]:
    """The first cell as a Markdown table, the best by E2E p95 first."""
    cell = document.cells[0]
    candidate = document.candidate
    found = {(c.metric, c.statistic): c for c in cell.comparisons}
    ttft, e2e = found["ttft_ms", "p95"], found["e2e_ms", "p95"]
    heads = ["policy", "TTFT p95 ms", "E2E p95 s", f"TTFT p95 to `{candidate}`", f"E2E p95 to `{candidate}`"]
    heads += ["hits believed, true", "hottest"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for policy in sorted(cell.policies, key=lambda p: p.e2e_ms["p95"]):
        marks = "".join(f" {mark}" for mark, c in (("T", ttft), ("E", e2e)) if _may_be_best(c, policy.name))
        name = f"*{policy.name}*" if policy.role == "yardstick" else f"`{policy.name}`"
        cells = [
            f"{name}{marks}",
            f"{policy.ttft_ms['p95']:,.0f}",
            f"{policy.e2e_ms['p95'] / 1e3:.2f}",
            _change(ttft, policy.name, candidate),
            _change(e2e, policy.name, candidate),
            f"{policy.believed_hit_share:.0%}, {policy.true_hit_share:.0%}",
            f"{policy.hottest_share:.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [_caption(document, cell), "", *lines]


def _caption(document: Document, cell: CellEntry) -> str:
    seeds, rate = document.seeds, cell.load["input_tokens_per_s"]
    return (
        f"`{cell.name}`, seeds {seeds[0]} to {seeds[-1]}, {rate:,.0f} input tokens/s, "
        f"first {cell.warmup_s:.0f} s dropped."
    )


def _may_be_best(comparison: Comparison, policy: str) -> bool:
    found = comparison.to_best.get(policy)
    return found is not None and found.possibly_best


def _change(comparison: Comparison, policy: str, candidate: str) -> str:
    found = comparison.to_candidate.get(policy)
    if found is None or policy == candidate:
        return "-"
    ratio, low, high = (100.0 * (value - 1.0) for value in (found.ratio, found.low, found.high))
    return f"{ratio:+.1f} % [{low:+.1f}, {high:+.1f}]"


def written(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with the lines between its markers of that name.

    Raises:
        ValueError: the page has no such markers.
    """
    begin, end = (f"<!-- figures {name}: {edge} -->" for edge in ("begin", "end"))
    body = "\n".join((begin, "", *lines, "", end))
    new, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: body, page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page needs {begin} and {end} once")
    return new


def main() -> None:
    """Write one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", help="which table of the page")
    parser.add_argument("results", type=Path, help="results.json")
    arguments = parser.parse_args()
    document = msgspec.json.decode(arguments.results.read_bytes(), type=Document)
    PAGE.write_text(written(PAGE.read_text(), arguments.name, table(document)))


if __name__ == "__main__":
    main()
