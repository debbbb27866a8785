"""Take the pictures of pages in README and docs: ``make screenshots`` (wants Debian's ``chromium``).

`PAGES` is the table: another page is a row with what brings it up. With ``--sizes FOLDER`` each page is taken
there at three widths, light and dark, to be looked at.
"""

from __future__ import annotations

import argparse
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


PAGES = {"report": Page(compared, 1280, 1420), "demo": Page(demo, 1280, 1560)}
#: Width and height, in px; and what Chromium calls the schemes.
SIZES = ((400, 3600), (1280, 1900), (2200, 1900))
SCHEMES = {"dark": 0, "light": 1}


def take(address: str, file: Path, width: int, height: int, *flags: str) -> None:
    """Take a page's picture."""
    # Chromium has no sandbox for root.
    root = ("--no-sandbox",) if os.getuid() == 0 else ()
    with tempfile.TemporaryDirectory() as profile:
        shot = (f"--user-data-dir={profile}", f"--screenshot={file}", f"--window-size={width},{height}")
        command = ("chromium", *_QUIET, *root, *flags, *shot, address)
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603
    print(file)


def main() -> None:
    """Take the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    # argparse holds what stands for no names to the choices, too.
    choices = [*PAGES, []]
    parser.add_argument("names", nargs="*", choices=choices, metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--sizes", type=Path, metavar="FOLDER", help="into it, at all sizes, light and dark")
    arguments = parser.parse_args()
    for name in arguments.names or PAGES:
        page = PAGES[name]
        with tempfile.TemporaryDirectory() as scratch, page.serve(Path(scratch)) as address:
            take(address, IMAGES / f"{name}.png", page.width, page.height)
            for width, height in SIZES if arguments.sizes else ():
                for scheme, number in SCHEMES.items():
                    file = arguments.sizes / f"{name}-{width}-{scheme}.png"
                    take(address, file, width, height, f"--blink-settings=preferredColorScheme={number}")


if __name__ == "__main__":
    main()
