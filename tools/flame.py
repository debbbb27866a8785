"""Draw folded stacks as a flame graph: ``python tools/flame.py FOLDED OUT.svg [--only TEXT] [--title TEXT]``.

Folded stacks are what ``py-spy record --format raw`` writes: frames from the outside in, joined by
semicolons, and the number of samples. Lines of a function are put together, and what is too narrow to be seen
is left out, so that the picture is small enough for the repository. Every box tells its name and its share
when pointed at; what is blank below a box is its own.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, CHARACTER = 1400.0, 17, 6.6
#: Boxes narrower than this are left out.
NARROWEST = 1.5
_LINE = re.compile(r":\d+\)$")
#: Colours by where code is from: ours, other Python.
_OURS, _OTHERS = "#f5a623", "#b9c7d6"


@dataclass(slots=True)
class Node:
    """A frame and what it called."""

    samples: int = 0
    called: dict[str, Node] = field(default_factory=dict)


def folded(text: str, only: str) -> Node:
    """The tree of the stacks that hold a text; functions, not lines."""
    root = Node()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if only not in stack:
            continue
        node = root
        node.samples += int(count)
        for frame in stack.split(";"):
            node = node.called.setdefault(_LINE.sub(")", frame), Node())
            node.samples += int(count)
    return root


def trunk(node: Node) -> Node:
    """Without the frames at the root that everything is in."""
    while len(node.called) == 1:
        (inner,) = node.called.values()
        if len(inner.called) != 1 or inner.samples != node.samples:
            break
        node = inner
    return node


def boxes(node: Node, whole: int, left: float, depth: int) -> list[tuple[str, float, float, int, float]]:
    """(name, left, width, depth, share) of all that can be seen, widest first at every depth."""
    found = []
    for name, inner in sorted(node.called.items(), key=lambda pair: -pair[1].samples):
        width = WIDTH * inner.samples / whole
        if width < NARROWEST:
            continue
        found.append((name, left, width, depth, inner.samples / whole))
        found += boxes(inner, whole, left, depth + 1)
        left += width
    return found


def draw(root: Node, title: str) -> str:
    """The picture."""
    node = trunk(root)
    shown = boxes(node, node.samples, 0.0, 0)
    height = (max((depth for _, _, _, depth, _ in shown), default=0) + 3) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/><g font-family="monospace">',
        f'<text x="4" y="13">{escape(title)}</text>',
    ]
    for name, left, width, depth, share in shown:
        top = (depth + 1) * ROW + 4
        colour = _OURS if "(epp/" in name else _OTHERS
        label = name[: int(width / CHARACTER)] if width > 5 * CHARACTER else ""
        text = f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(label)}</text>' if label else ""
        lines.append(
            f"<g><title>{escape(name)}: {share:.1%}</title>"
            f'<rect x="{left:.1f}" y="{top}" width="{width - 0.5:.1f}" height="{ROW - 1}" fill="{colour}"/>'
            f"{text}</g>"
        )
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folded", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--only", default="", help="stacks with this text in them, such as a thread's name")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    root = folded(arguments.folded.read_text(encoding="utf-8"), arguments.only)
    if not root.samples:
        parser.error(f"{arguments.folded}: no stack with {arguments.only!r} in it")
    arguments.picture.write_text(draw(root, arguments.title), encoding="utf-8")


if __name__ == "__main__":
    main()
