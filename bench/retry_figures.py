"""The figures of docs/laar.md, from the ``results.json`` of `epp replay`.

    epp replay --workload kv-retry --policy laar,laar-paper,least-load,session-affinity --resume --out report
    python -m bench.retry_figures report/results.json

Writes tables and sentences between the page's markers of the workload's name. Absolute figures are means over
draws; gains are medians over draws with 5 to 95 %.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.policy_figures import written
from epp.replay.kv_retry.document import Retries, conclusion

if TYPE_CHECKING:
    from epp.replay.kv_retry.document import PolicyCell, RetryCell

PAGE = Path(__file__).parent.parent / "docs" / "laar.md"
_WIDTH = 118


def lines_of(found: Retries) -> list[str]:
    """Caption, table over all languages, gains in single cells, and what may be said."""
    draws = f"Draws {found.draws[0]} to {found.draws[-1]}: means; gains are medians over draws [5 to 95 %]."
    return [
        draws,
        "",
        *_table(found),
        "",
        "Of single cells, median gain of TTCA over draws (and the best draw) / per right answer:",
        "",
        *_cells(found),
        "",
        "What the command says:",
        "",
        *(line for sentence in found.conclusion for line in _item(sentence.replace("%", " %"))),
    ]


def _table(found: Retries) -> list[str]:
    heads = ["length", "policy", "TTCA s", "s per right answer", "right", "at once", "attempts, most", "hits"]
    heads += [f"TTCA gain of `{found.candidate}`", "gain per right answer", "right, more"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for cell in found.cells:
        if cell.language == "all":
            lines += ["| " + " | ".join(_row(found, cell, entry)) + " |" for entry in cell.policies]
    return lines


def _row(found: Retries, cell: RetryCell, entry: PolicyCell) -> list[str]:
    middle = found.quantiles.index(0.5)
    low, high = found.quantiles.index(0.05), found.quantiles.index(0.95)
    gain = per_right = more = "-"
    if entry.policy != found.candidate:
        gain, per_right = (
            f"{_signed(gains[middle])} [{_signed(gains[low])}, {_signed(gains[high])}]"
            for gains in (entry.gain, entry.gain_per_correct)
        )
        more = f"{100 * entry.success_more[middle]:+.1f} %"
    return [
        f"{cell.prompt_tokens // 1024}K",
        f"`{entry.policy}`",
        f"{entry.ttca_ms / 1e3:.1f}",
        f"{entry.per_correct_ms / 1e3:.1f}",
        f"{100 * entry.success:.1f} %",
        f"{100 * entry.first:.0f} %",
        f"{entry.attempts:.1f}, {entry.most_attempts}",
        f"{100 * entry.hit_share:.0f} %",
        gain,
        per_right,
        more,
    ]


def _cells(found: Retries) -> list[str]:
    middle = found.quantiles.index(0.5)
    single = [cell for cell in found.cells if cell.language != "all"]
    lines = []
    for entry in single[0].policies:
        if entry.policy == found.candidate:
            continue
        gains = []
        for cell in single:
            theirs = next(other for other in cell.policies if other.policy == entry.policy)
            gain, per_right = theirs.gain, theirs.gain_per_correct[middle]
            gains.append(f"{cell.name} {_signed(gain[middle])} ({_signed(gain[-1])}) / {_signed(per_right)}")
        lines += _item(f"`{entry.policy}`: {', '.join(gains)}")
    return lines


def _item(text: str) -> list[str]:
    return textwrap.wrap(f"* {text}", _WIDTH, subsequent_indent="  ", break_long_words=False)


def _signed(share: float) -> str:
    return f"{100 * share:+.0f} %"


def main() -> None:
    """Write one workload's figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json")
    arguments = parser.parse_args()
    found = msgspec.json.decode(arguments.results.read_bytes(), type=Retries)
    found = msgspec.structs.replace(found, conclusion=conclusion(found))
    PAGE.write_text(written(PAGE.read_text(), found.workload, lines_of(found)))


if __name__ == "__main__":
    main()
