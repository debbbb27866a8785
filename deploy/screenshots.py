"""Take the pictures of pages in README and docs: ``make screenshots`` (wants Debian's ``chromium``).

`PAGES` is the table: another page is a row with what brings it up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: Nothing of its own is looked up: only the page is.
_QUIET = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


class Page(NamedTuple):
    """A page to take a picture of.

    Attributes:
        serve: brings the page up, working in the folder it is given, and yields its address.
        width, height: of the picture, in px.
    """

    serve: Callable[[Path], AbstractContextManager[str]]
    width: int
    height: int


def _epp(folder: Path, *words: str) -> None:
    subprocess.run((sys.executable, "-m", "epp", *words), cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


@contextmanager
def compared(folder: Path) -> Iterator[str]:
    """Compare four policies in the simulator."""
    policies = "gorgo-ms,least-request,prefix-cache,session-affinity"
    _epp(folder, "lab", "compare", "--workload", "demo", "--policy", policies)
    yield (folder / "report" / "report.html").as_uri()


@contextmanager
def demo(folder: Path) -> Iterator[str]:
    """Run the demo."""
    _epp(folder, "demo")
    yield (folder / "demo-out" / "report.html").as_uri()


PAGES = {"report": Page(compared, 1240, 1160), "demo": Page(demo, 1240, 1520)}


def take(name: str) -> None:
    """Take a page's picture."""
    page = PAGES[name]
    # Chromium has no sandbox for root.
    flags = (*_QUIET, *(("--no-sandbox",) if os.getuid() == 0 else ()))
    with tempfile.TemporaryDirectory() as scratch, page.serve(Path(scratch)) as address:
        shot = (f"--screenshot={IMAGES / name}.png", f"--window-size={page.width},{page.height}")
        command = ("chromium", *flags, f"--user-data-dir={scratch}/profile", *shot, address)
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603


def main() -> None:
    """Take the pictures that are named, or all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or PAGES:
        take(name)
        print(f"docs/images/{name}.png")


if __name__ == "__main__":
    main()
