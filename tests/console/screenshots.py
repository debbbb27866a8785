"""Take the pictures of the live page and of `epp top` that the documentation shows, of the demo's fleet.

python -m tests.console.screenshots [--images docs/images]
"""

from __future__ import annotations

import asyncio
import io
import sys
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console

from epp.feeds.files import replace_file
from epp.ops.top import drawn, pictures
from epp_lab.demo.command import fleet
from epp_lab.demo.example import example_parser, run_example
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.browser import Chromium

#: The load lasts longer than the pictures take; pins come one by one, so that weights have a history.
_LOAD_S, _PIN_S = 60.0, 4.0
_PINS = (0.4, 0.3, 0.6)
_SIZE = (1280, 720)
_OTHER = "lmetric"
_COLUMNS, _LINES = 130, 34


def main() -> int:
    """Run the demo's fleet, and take the pictures."""
    parser = example_parser("screenshots", __doc__)
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="folder (%(default)s)")
    return run_example(parser, lambda arguments: uvloop.run(show(arguments.out, arguments.images)))


async def show(out: Path, images: Path) -> int:
    """Take pictures under load."""
    requests = generate(replace(DEMO, duration_s=_LOAD_S), 1)
    async with fleet(out, "gorgo-ms") as stack, Chromium(out, _SIZE) as page:
        sending = asyncio.create_task(stack.send(requests))
        await page.open(f"{stack.picker_url}/ui")
        for weight in _PINS:
            await asyncio.sleep(_PIN_S)
            pins = f"weights: {{stall_weight: {weight}}}\n"
            replace_file(stack.folder / "overrides.yaml", pins.encode())
        await asyncio.sleep(_PIN_S)
        await page.look(
            f"document.getElementById('other').value = '{_OTHER}',"
            "document.getElementById('ask').requestSubmit()"
        )
        await page.until("document.querySelector('#opinion table') !== null")
        replace_file(images / "ui.webp", await page.screenshot())
        await page.dark(on=True)
        await page.press("j")
        await page.press("Enter")
        await page.until("document.getElementById('explain').open")
        replace_file(images / "ui-explain.webp", await page.screenshot())
        text = out / "top.html"
        replace_file(text, (await asyncio.to_thread(top, stack.picker_url)).encode())
        await page.open(text.absolute().as_uri())
        await page.until("document.querySelector('pre') !== null")
        replace_file(images / "top.webp", await page.screenshot())
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return 0


def top(url: str) -> str:
    """Draw the picture of `epp top` as a page."""
    picture = next(pictures(url))
    console = Console(
        record=True,
        width=_COLUMNS,
        height=_LINES,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(drawn(picture, _LINES))
    style = (
        "body { background: #14171c; color: #e4e7eb; margin: 16px; font-size: 15px } pre { line-height: 1.3 }"
    )
    return console.export_html(inline_styles=True).replace("</head>", f"<style>{style}</style></head>")


if __name__ == "__main__":
    sys.exit(main())
